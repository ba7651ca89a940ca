// A monotonic clock.

#pragma once

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

namespace autobatch {

// Returns the seconds since a fixed but arbitrary moment.
inline double seconds_now() {
#ifdef _WIN32
  LARGE_INTEGER now, frequency;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&frequency);
  return (double)now.QuadPart / (double)frequency.QuadPart;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#endif
}

}  // namespace autobatch
