# A compiler that is missing or too old is one sentence, before any test of CMake's own.
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX} AND NOT CMAKE_GENERATOR MATCHES "Visual Studio|Xcode")
  find_program(quire_any_compiler NAMES c++ g++ clang++ cl icpx
    NAMES_PER_DIR DOC "any C++ compiler, so that its absence can be told plainly")
  mark_as_advanced(quire_any_compiler)
  if(NOT quire_any_compiler)
    message(FATAL_ERROR "building Quire needs a C++20 compiler but none is in PATH: install one (Debian, Ubuntu: "
      "apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install), name one in CXX, or take a wheel, "
      "which needs none: pip install --only-binary quire-llm quire-llm")
  endif()
endif()
enable_language(C CXX)
# The oldest that know the language and the instruction sets of our kernels.
set(oldest_GNU 11)
set(oldest_Clang 15)
set(oldest_AppleClang 15)
if(DEFINED oldest_${CMAKE_CXX_COMPILER_ID} AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS
   oldest_${CMAKE_CXX_COMPILER_ID})
  message(FATAL_ERROR "building Quire needs ${CMAKE_CXX_COMPILER_ID} ${oldest_${CMAKE_CXX_COMPILER_ID}} or newer but "
    "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_VERSION}: name a newer one in CXX (and CC), or take a wheel, which "
    "needs none: pip install --only-binary quire-llm quire-llm")
endif()
