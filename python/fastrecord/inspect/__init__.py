"""What files, machines and training runs are like: `stats`, `browse`, `diff`, `doctor`, `bench`, `plan`, `plan_cache`.

Imports the loader and the layers below it. Only the command line imports it.
"""

from typing import TYPE_CHECKING

from fastrecord.lazy import lazily

if TYPE_CHECKING:
    from fastrecord.inspect.benchmark import bench as bench
    from fastrecord.inspect.cache_plan import plan_cache as plan_cache
    from fastrecord.inspect.compare import diff as diff
    from fastrecord.inspect.diagnosis import doctor as doctor
    from fastrecord.inspect.page import browse as browse
    from fastrecord.inspect.plan_options import Cluster as Cluster
    from fastrecord.inspect.plan_options import Data as Data
    from fastrecord.inspect.plan_options import Training as Training
    from fastrecord.inspect.plots import plot_stats as plot_stats
    from fastrecord.inspect.prediction import Plan as Plan
    from fastrecord.inspect.prediction import plan as plan
    from fastrecord.inspect.statistics import stats as stats
    from fastrecord.inspect.verdict import judge as judge
    from fastrecord.packing.pack import preview as preview
    from fastrecord.sampler.draws import class_weights as class_weights

_NAMES = {
    "Cluster": "plan_options",
    "Data": "plan_options",
    "Plan": "prediction",
    "Training": "plan_options",
    "bench": "benchmark",
    "browse": "page",
    "class_weights": "fastrecord.sampler.draws",
    "diff": "compare",
    "doctor": "diagnosis",
    "judge": "verdict",
    "plan": "prediction",
    "plan_cache": "cache_plan",
    "plot_stats": "plots",
    "preview": "fastrecord.packing.pack",
    "stats": "statistics",
}
__all__ = sorted(_NAMES)
__getattr__, __dir__ = lazily(__name__, _NAMES)
