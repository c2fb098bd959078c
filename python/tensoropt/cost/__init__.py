"""What operators, collectives and memory cost on a described cluster."""

from tensoropt.cost.calibration import MemoryCalibration
from tensoropt.cost.communication import COLLECTIVES, CommunicationModel
from tensoropt.cost.compute import ComputeModel
from tensoropt.cost.overlap import exposed_time, overlapped_time
from tensoropt.cost.precision import Optimizer, Precision

__all__ = [
    "COLLECTIVES",
    "CommunicationModel",
    "ComputeModel",
    "MemoryCalibration",
    "Optimizer",
    "Precision",
    "exposed_time",
    "overlapped_time",
]
