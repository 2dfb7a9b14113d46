"""`mindspore.parallel.nn`: parts of a batch one after another, and Transformers, which MindSpore 1 had here."""

from __future__ import annotations

from mspc.api.nn.wrap import GradAccumulation, MicroBatchInterleaved, PipelineCell
from mspc.api.parallel import transformer as _transformer
from mspc.api.parallel.transformer import *  # noqa: F403

Pipeline = PipelineCell

__all__ = ["GradAccumulation", "MicroBatchInterleaved", "Pipeline", "PipelineCell", *_transformer.__all__]
