"""Data-parallel training over slow networks: ternary gradients, exactly summed by ordinary collectives."""

from jaxtern.compression.calibration import calibrate as calibrate
from jaxtern.compression.codecs import Codec as Codec
from jaxtern.compression.codecs import Ternary as Ternary
from jaxtern.compression.cost import Network as Network
from jaxtern.compression.report import WireReport as WireReport
from jaxtern.compression.report import wire_report as wire_report
from jaxtern.compression.transform import CompressedMeanState as CompressedMeanState
from jaxtern.compression.transform import compressed_mean as compressed_mean
from jaxtern.compression.transform import state_specs as state_specs
from jaxtern.compression.transform import ternary_mean as ternary_mean

__version__ = "0.1.0"
