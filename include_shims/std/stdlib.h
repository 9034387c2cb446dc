// malloc and free are NVRTC's own; a kernel has no environment, exit or random state.
#pragma once
