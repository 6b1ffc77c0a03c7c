"""Data-parallel training over slow networks: ternary gradients, exactly summed by ordinary collectives."""

from jaxtern.compression.codecs import Codec as Codec
from jaxtern.compression.codecs import Ternary as Ternary
from jaxtern.compression.transform import CompressedMeanState as CompressedMeanState
from jaxtern.compression.transform import compressed_mean as compressed_mean
from jaxtern.compression.transform import ternary_mean as ternary_mean

__version__ = "0.1.0"
