"""Power sensors, boards and energy: the public face of the devices. Nothing is detected at import.

No library of a vendor is loaded either: each sensor's file is imported when the sensor is opened.
"""

from edgeprec.devices.detect import Attempt, Detection, detect, survey
from edgeprec.devices.meter import Meter
from edgeprec.devices.null import NullSensor
from edgeprec.devices.reading import EnergyReading
from edgeprec.devices.recording import record
from edgeprec.devices.sensor import Quantity, Rail, Sample, Scope, Sensor, Total
from edgeprec.devices.simulated import SimulatedBoard, simulated

__all__ = [
    "Attempt",
    "Detection",
    "EnergyReading",
    "Meter",
    "NullSensor",
    "Quantity",
    "Rail",
    "Sample",
    "Scope",
    "Sensor",
    "SimulatedBoard",
    "Total",
    "detect",
    "record",
    "simulated",
    "survey",
]
