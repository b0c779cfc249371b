"""Robust least squares with weak priors: what measurements do not tell stays as it was assumed.

Every parameter is a change from the assumption, 0 = none. The prior is a standard deviation of 1 (a factor of e for
logarithms) against a nominal noise of a few percent of what is measured, so it decides only where measurements say
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from hetplanner.arrays import FloatArray

NOISE = 0.05
# A parameter is not told by the measurements if the prior alone leaves it this variance (the prior's own is 1).
UNTOLD = 0.25
# Parameters that are tied differ by this much, against the prior's 1.
TIE = 0.3
# Information, in units of the prior's.
UNTOUCHED = 1e-6
# A fit ends when an iteration lowers the cost by less than this share: measurements have a noise of percents.
LEAST_GAIN = 1e-6
# Relative step of finite differences, as in SciPy.
STEP = float(np.sqrt(np.finfo(np.float64).eps))


@dataclass(frozen=True)
class Solution:
    """Fitted parameters.

    Attributes:
        error: standard errors; None where the measurements do not tell the parameter from others.
        touched: whether any measurement depends on the parameter at all.
    """

    value: FloatArray
    error: tuple[float | None, ...]
    touched: tuple[bool, ...]


def fit_least_squares(
    log_ratio: Callable[[FloatArray], FloatArray],
    size: int,
    *,
    weights: FloatArray | float = 1.0,
    noise: float = NOISE,
    ties: Sequence[tuple[int, int]] = (),
    bounds: tuple[FloatArray | float, FloatArray | float] = (-np.inf, np.inf),
    starts: Sequence[FloatArray] = (),
    loss: Literal["soft_l1", "linear"] = "soft_l1",
    batched: bool = False,
) -> Solution:
    """Minimises the weighted logarithms of predicted over measured.

    Args:
        log_ratio: of the parameters, one number for every measurement.
        size: number of parameters.
        weights: of the measurements.
        noise: relative, nominal: the smaller it is, the less the prior pulls.
        ties: pairs of parameters that are likely to change alike.
        bounds: of the parameters; 0 must lie inside.
        starts: where the search begins beside 0, no change; the best of all ends is taken, of equal ones the first.
        loss: soft_l1 is pulled less by measurements far off; linear lies between measurements that disagree.
        batched: whether `log_ratio` also takes a batch of parameters (a row each) and returns a row for each. The
            Jacobian then takes one call.

    Returns:
        The solution. Errors are standard errors by the curvature: the noise that is seen (at least a tenth of the
        nominal) and what the assumption decides where measurements do not.

    Source: Gauss-Newton covariance.
    """
    weights = np.asarray(weights, dtype=np.float64)
    prior = np.eye(size)
    for one, two in ties:
        row = np.zeros((1, size))
        row[0, one], row[0, two] = 1.0 / TIE, -1.0 / TIE
        prior = np.concatenate((prior, row))

    def residuals(x: FloatArray) -> FloatArray:
        return np.concatenate((weights * log_ratio(x) / noise, prior @ x))

    def jacobian(x: FloatArray) -> FloatArray:
        step = STEP * np.maximum(1.0, np.abs(x))
        rows = (log_ratio(x + np.diag(step)) - log_ratio(x)) / step[:, None]
        return np.concatenate((weights[..., None] * rows.T / noise, prior))

    begun = [np.zeros(size), *(np.clip(start, *bounds) for start in starts)]
    how = jacobian if batched else "2-point"
    ends = [
        least_squares(residuals, start, how, bounds=bounds, loss=loss, x_scale=1.0, ftol=LEAST_GAIN) for start in begun
    ]
    return _solution(min(ends, key=lambda end: float(end.cost)), prior)


def _solution(found: OptimizeResult, prior: FloatArray) -> Solution:
    """Where a fit ended, with standard errors: see `fit_least_squares`."""
    size = prior.shape[1]
    count = len(found.fun) - len(prior)
    measured_J = found.jac[:count]
    spread = float(np.clip(np.sqrt(np.sum(found.fun[:count] ** 2) / max(count - size, 1)), 0.1, 10.0))
    told, held = measured_J.T @ measured_J, prior.T @ prior
    covariance = np.linalg.inv(told + held)
    # The measurements' noise is seen in how well they are met; what only the prior holds stays as vague as that is.
    seen = spread**2 * np.diag(covariance @ told @ covariance)
    assumed = np.diag(covariance @ held @ covariance)
    errors = tuple(None if a > UNTOLD else float(np.sqrt(max(n, 0.0) + a)) for n, a in zip(seen, assumed, strict=True))
    return Solution(found.x, errors, tuple(bool(t > UNTOUCHED) for t in np.diag(told)))
