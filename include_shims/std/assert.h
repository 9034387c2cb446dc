// assert is NVRTC's own and obeys NDEBUG.
#pragma once
