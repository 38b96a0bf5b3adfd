"""Device health: what a driver counts and says of each device, before and after a run, and what follows from it.

`read.read_health(monitor)` reads every device once, in a child process with a deadline; `read.start_reading` does so
in the background. `reading.DeviceHealth` is what was read of one device; `change.health_change(before, after)` is the
difference of two of them, and `judge.judge_health(before, after, xids)` what it means. `kernel_log.read_xids(after)`
reads NVIDIA's errors from the kernel log of the host. Nothing here raises for a faulty device.
"""
