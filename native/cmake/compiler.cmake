# Report a missing or outdated compiler in one sentence, before CMake runs its own tests.
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX} AND NOT CMAKE_GENERATOR MATCHES "Visual Studio|Xcode")
  find_program(quire_any_compiler NAMES c++ g++ clang++ cl icpx
    NAMES_PER_DIR DOC "any C++ compiler, to report clearly if there is none")
  mark_as_advanced(quire_any_compiler)
  if(NOT quire_any_compiler)
    message(FATAL_ERROR "no C++ compiler in PATH, and building Quire needs one for C++20: install it (Debian, Ubuntu: "
      "apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), name it in CXX, or install a wheel, "
      "which needs none: pip install --only-binary quire-llm quire-llm")
  endif()
endif()
enable_language(C CXX)
# The oldest versions that support C++20 and the instruction sets of the kernels.
set(oldest_GNU 11)
set(oldest_Clang 15)
set(oldest_AppleClang 15)
if(DEFINED oldest_${CMAKE_CXX_COMPILER_ID} AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS
   oldest_${CMAKE_CXX_COMPILER_ID})
  message(FATAL_ERROR "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, and building "
    "Quire needs ${oldest_${CMAKE_CXX_COMPILER_ID}} or newer: name a newer compiler in CXX (and CC), or install a wheel, "
    "which needs none: pip install --only-binary quire-llm quire-llm")
endif()
