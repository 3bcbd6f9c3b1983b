"""The settings of a stage for TensorBoard's HParams tab, where runs are compared by settings and results."""

import math
import time
from collections.abc import Mapping
from typing import Any


def hparams_summary(settings: Mapping[str, Any]) -> Any:
    """The summary that makes a stage's folder a row of the tab; its scalars are the results. TensorBoard keeps the
    first one of a folder, so a resume may write it again.

    torch's `add_hparams` would make a second folder for each run. It also lists settings and metrics for the whole tab,
    of which TensorBoard takes the list of the first run for all; without a list it shows those of every run.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.metadata import NULL_TENSOR, SESSION_START_INFO_TAG, create_summary_metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    start = SessionStartInfo(start_time_secs=time.time())
    for name, value in settings.items():
        if isinstance(value, bool):
            start.hparams[name].bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            start.hparams[name].number_value = value
        elif value is not None:  # the cell stays empty
            start.hparams[name].string_value = f"{value}"
    metadata = create_summary_metadata(HParamsPluginData(session_start_info=start))
    return Summary(value=[Summary.Value(tag=SESSION_START_INFO_TAG, metadata=metadata, tensor=NULL_TENSOR)])
