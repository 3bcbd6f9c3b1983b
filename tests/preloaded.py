"""What the server that all workers are forked from has done before them, so that none of them does it again: besides
its imports, composing a configuration once, which imports the reader of YAML."""

from samestep.core.config import compose
from samestep.train.record.config import Config

compose(Config)
