// What `warplens nvcc` includes in front of each source file: host.hpp, where kernels can be launched from.
// In: nothing. Out: launches of this file can be recorded. Older C++ than host.hpp's stays as it is, without marks.
#ifndef WARPLENS_DETAIL_AUTOMATIC_HPP
#define WARPLENS_DETAIL_AUTOMATIC_HPP

// What follows is as from -isystem: warnings that the program's build asks for are for the program's own code.
#pragma GCC system_header

#if defined(__CUDACC__) && defined(__cplusplus) && __cplusplus >= 201703L
#include "../host.hpp"
#endif

#endif  // WARPLENS_DETAIL_AUTOMATIC_HPP
