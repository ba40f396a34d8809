"""Traces of device availability and populations of devices: when devices check in, what they are and how fast.

`CheckIns` and `DevicePopulation` are what the engines and the demo's fleet read; `open_check_ins` and `open_population`
make them from what a user names. Everything but Parquet files works in the base install.
"""

from vennue.simulation.traces.devices import (
    CLASSES,
    Capacity,
    DevicePopulation,
    Devices,
    DeviceTable,
    Regions,
    phone_population,
    task_time_s,
)
from vennue.simulation.traces.files import (
    open_check_ins,
    open_population,
    phone_trace,
    read_recording,
    read_trace,
    write_trace,
)
from vennue.simulation.traces.model import Block, CheckIns, Trace
from vennue.simulation.traces.paper import PaperCheckIns
from vennue.simulation.traces.synth import synthesise

__all__ = [
    "CLASSES",
    "Block",
    "Capacity",
    "CheckIns",
    "DevicePopulation",
    "DeviceTable",
    "Devices",
    "PaperCheckIns",
    "Regions",
    "Trace",
    "open_check_ins",
    "open_population",
    "phone_population",
    "phone_trace",
    "read_recording",
    "read_trace",
    "synthesise",
    "task_time_s",
    "write_trace",
]
