"""Live Bokeh figures: built once, then `update`d with data only. Canvas backend, no requests beyond the page."""

from hetplanner.plots.live.allocation_grid import AllocationGrid
from hetplanner.plots.live.ancestry import Ancestry
from hetplanner.plots.live.convergence_curve import ConvergenceCurve
from hetplanner.plots.live.cost_bars import CostBars
from hetplanner.plots.live.cross_light import CrossLight
from hetplanner.plots.live.device_map import DeviceMap
from hetplanner.plots.live.editable_map import EditableMap
from hetplanner.plots.live.front_curve import FrontCurve
from hetplanner.plots.live.host_loads import HostLoads, HostTraffic
from hetplanner.plots.live.lifelines import Lifelines
from hetplanner.plots.live.link_heatmap import LinkHeatmap
from hetplanner.plots.live.link_loads import LinkLoads
from hetplanner.plots.live.loss_curve import LossCurve
from hetplanner.plots.live.memory_bars import MemoryBars
from hetplanner.plots.live.memory_curves import MemoryCurves
from hetplanner.plots.live.replay import Replay
from hetplanner.plots.live.run_memory import RunMemory
from hetplanner.plots.live.run_overlay import RunOverlay
from hetplanner.plots.live.run_terms import RunTerms
from hetplanner.plots.live.stage_peers import StagePeers
from hetplanner.plots.live.stage_shares import StageShares
from hetplanner.plots.live.step_gantt import StepGantt
from hetplanner.plots.live.step_time_curve import StepTimes
from hetplanner.plots.live.swarm_life import SwarmLife
from hetplanner.plots.live.swarm_wiring import SwarmWiring
from hetplanner.plots.live.throughput_curve import ThroughputCurve
from hetplanner.plots.live.timeline import Timeline
from hetplanner.plots.live.traffic_map import TrafficMap
from hetplanner.plots.live.tried_shapes import TriedShapes

__all__ = [
    "AllocationGrid",
    "Ancestry",
    "ConvergenceCurve",
    "CostBars",
    "CrossLight",
    "DeviceMap",
    "EditableMap",
    "FrontCurve",
    "HostLoads",
    "HostTraffic",
    "Lifelines",
    "LinkHeatmap",
    "LinkLoads",
    "LossCurve",
    "MemoryBars",
    "MemoryCurves",
    "Replay",
    "RunMemory",
    "RunOverlay",
    "RunTerms",
    "StagePeers",
    "StageShares",
    "StepGantt",
    "StepTimes",
    "SwarmLife",
    "SwarmWiring",
    "ThroughputCurve",
    "Timeline",
    "TrafficMap",
    "TriedShapes",
]
