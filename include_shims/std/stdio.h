// printf is NVRTC's own; the device has no files.
#pragma once
