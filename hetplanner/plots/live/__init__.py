"""Live Bokeh figures: built once, then `update`d with data only. Canvas backend, no requests beyond the page."""

from hetplanner.plots.live.maps.cross_light import CrossLight
from hetplanner.plots.live.maps.device_map import DeviceMap
from hetplanner.plots.live.maps.editable_map import EditableMap
from hetplanner.plots.live.maps.link_heatmap import LinkHeatmap
from hetplanner.plots.live.maps.traffic_map import TrafficMap
from hetplanner.plots.live.runs.collective_curves import CollectiveCurves
from hetplanner.plots.live.runs.expert_loads import ExpertLoads
from hetplanner.plots.live.runs.held_out_curves import AccuracyCurve, PerplexityCurve
from hetplanner.plots.live.runs.host_loads import HostLoads, HostTraffic
from hetplanner.plots.live.runs.lifelines import Lifelines
from hetplanner.plots.live.runs.loss_curve import LossCurve
from hetplanner.plots.live.runs.run_memory import RunMemory
from hetplanner.plots.live.runs.run_overlay import RunOverlay
from hetplanner.plots.live.runs.run_terms import RunTerms
from hetplanner.plots.live.runs.step_time_curve import StepTimes
from hetplanner.plots.live.runs.throughput_curve import ThroughputCurve
from hetplanner.plots.live.search.allocation_grid import AllocationGrid
from hetplanner.plots.live.search.ancestry import Ancestry
from hetplanner.plots.live.search.convergence_curve import ConvergenceCurve
from hetplanner.plots.live.search.cost_bars import CostBars
from hetplanner.plots.live.search.front_curve import FrontCurve
from hetplanner.plots.live.search.memory_bars import MemoryBars
from hetplanner.plots.live.search.replay import Replay
from hetplanner.plots.live.search.tried_shapes import TriedShapes
from hetplanner.plots.live.steps.link_loads import LinkLoads
from hetplanner.plots.live.steps.memory_curves import MemoryCurves
from hetplanner.plots.live.steps.stage_shares import StageShares
from hetplanner.plots.live.steps.step_gantt import StepGantt
from hetplanner.plots.live.steps.timeline import Timeline
from hetplanner.plots.live.swarms.stage_peers import StagePeers
from hetplanner.plots.live.swarms.swarm_life import SwarmLife
from hetplanner.plots.live.swarms.swarm_wiring import SwarmWiring

__all__ = [
    "AccuracyCurve",
    "AllocationGrid",
    "Ancestry",
    "CollectiveCurves",
    "ConvergenceCurve",
    "CostBars",
    "CrossLight",
    "DeviceMap",
    "EditableMap",
    "ExpertLoads",
    "FrontCurve",
    "HostLoads",
    "HostTraffic",
    "Lifelines",
    "LinkHeatmap",
    "LinkLoads",
    "LossCurve",
    "MemoryBars",
    "MemoryCurves",
    "PerplexityCurve",
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
