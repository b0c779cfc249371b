"""The residual networks that are shipped captured, as factories: `python -m hetplanner.capture.presets` writes them.

A preset is captured for one micro-batch and knows its calls for others (`--micro-batch`).
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hetplanner.capture.assemble import capture_workload
from hetplanner.workload.files import workload_to_data
from hetplanner.workload.presets import CAPTURED_PRESETS, captured_preset_path
from hetplanner.workload.workload import Workload


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, each with batch norm, around a skip connection.

    Source: He et al. 2016, figure 5 (right), with the stride in the 3×3 convolution.
    """

    expansion = 4

    def __init__(self, wide_in: int, width: int, stride: int) -> None:
        super().__init__()
        wide_out = self.expansion * width
        self.conv1, self.bn1 = nn.Conv2d(wide_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, wide_out, 1, bias=False), nn.BatchNorm2d(wide_out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or wide_in != wide_out:
            skip = nn.Conv2d(wide_in, wide_out, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(skip, nn.BatchNorm2d(wide_out))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A residual network of bottleneck blocks.

    Args:
        depths: blocks of each stage; every stage but the first halves the image and doubles the width.
        width: of the first stage's 3×3 convolutions.
        classes: number of classes.
        channels: of the image.
        small: for small images: a 3×3 convolution in front instead of 7×7, stride 2 and pooling.

    Source: He et al. 2016, table 1 and section 4.2 (small images).
    """

    def __init__(self, depths: tuple[int, ...], width: int, classes: int, channels: int, *, small: bool) -> None:
        super().__init__()
        size, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, size, stride=stride, padding=size // 2, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        wide, stages = width, []
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(Bottleneck(wide, width << i, 2 if i and not j else 1))
                wide = Bottleneck.expansion * (width << i)
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.ModuleList(stages)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(wide, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in self.stages:
            x = stage(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet101() -> tuple[nn.Module, Tensor]:
    """ResNet-101 for ImageNet: 224×224 pixels, 1,000 classes, 44.5 million parameters."""
    return ResNet((3, 4, 23, 3), 64, 1000, 3, small=False), torch.zeros(4, 3, 224, 224)


def resnet101_narrow() -> tuple[nn.Module, Tensor]:
    """ResNet-101's depth, an eighth of its width, for 16×16 grey images of 10 classes: trains on a CPU."""
    return ResNet((3, 4, 23, 3), 8, 10, 1, small=True), torch.zeros(8, 1, 16, 16)


def tiny_resnet() -> tuple[nn.Module, Tensor]:
    """Four blocks for 16×16 grey images of 10 classes."""
    return ResNet((2, 1, 1), 8, 10, 1, small=True), torch.zeros(8, 1, 16, 16)


FACTORIES: dict[str, Callable[[], Any]] = {
    "tiny-resnet": tiny_resnet, "resnet101-narrow": resnet101_narrow, "resnet101": resnet101,
}  # fmt: skip


def captured_preset(name: str) -> Workload:
    """A preset captured anew."""
    factory = FACTORIES[name]
    return capture_workload(
        factory,
        name,
        global_batch=CAPTURED_PRESETS[name],
        provenance=f"captured from hetplanner.capture.presets:{factory.__name__}",
    )


def write_presets() -> list[Path]:
    """Captures every preset into the package; the files written."""
    written = []
    for name in FACTORIES:
        path = Path(str(captured_preset_path(name)))
        text = json.dumps(workload_to_data(captured_preset(name)), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        written.append(path)
    return written


if __name__ == "__main__":
    write_presets()
