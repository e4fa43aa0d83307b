# Our own code: one extension module over one set of sources, and the Cython tokenizers.
find_package(pybind11 CONFIG QUIET)
if(NOT pybind11_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_package(pybind11 CONFIG REQUIRED)
endif()

# A copy of its headers, as pip builds in an environment with a new path each time: objects that knew that path would be
# compiled again by each install.
set(bindings_include ${CMAKE_CURRENT_BINARY_DIR}/include)
file(GLOB_RECURSE headers RELATIVE ${pybind11_INCLUDE_DIR} ${pybind11_INCLUDE_DIR}/pybind11/*.h)
foreach(header ${headers})
  get_filename_component(folder ${bindings_include}/${header} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(COPY_FILE ${pybind11_INCLUDE_DIR}/${header} ${bindings_include}/${header} ONLY_IF_DIFFERENT)
endforeach()

file(GLOB_RECURSE native_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/*.cpp)
list(FILTER native_sources EXCLUDE REGEX "native/tokenizer/")
if(NOT SKBUILD_PROJECT_VERSION)
  file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml version_line REGEX "^version = ")
  string(REGEX MATCH "[0-9][0-9a-z.]*" SKBUILD_PROJECT_VERSION "${version_line}")
endif()
python_add_library(_native MODULE WITH_SOABI ${native_sources})
target_include_directories(_native PRIVATE native)
target_include_directories(_native SYSTEM PRIVATE ${bindings_include})
target_compile_options(_native PRIVATE $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-Wall -Wextra -fvisibility=hidden>
  # Where the compiler fuses would depend on inlining; the kernels promise the same bits in every batch.
  $<$<NOT:$<CXX_COMPILER_ID:MSVC>>:-ffp-contract=off>)
target_link_libraries(_native PRIVATE ggml ggml-base)
target_compile_definitions(_native PRIVATE QUIRE_VERSION="${SKBUILD_PROJECT_VERSION}" $<$<CONFIG:Debug>:QUIRE_DEBUG>)
set(origin "$<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>")
set_target_properties(_native PROPERTIES INSTALL_RPATH "${origin}/lib" BUILD_WITH_INSTALL_RPATH OFF)
install(TARGETS _native COMPONENT quire LIBRARY DESTINATION quire RUNTIME DESTINATION quire)

if(QUIRE_SANITIZE)
  # Unrolled code, and bindings, with checks at every step take the optimizer minutes.
  set(quick_to_compile -O1 -g1)
  file(GLOB quick_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/portable/*.cpp
    ${CMAKE_CURRENT_SOURCE_DIR}/native/bindings/*.cpp)
  set_source_files_properties(${quick_sources} PROPERTIES COMPILE_OPTIONS "${quick_to_compile}")
endif()
# Kernels of one instruction set live in native/kernels/<isa>/ and are compiled for it; cpuid chooses at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT MSVC)
  file(GLOB avx2_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx2/*.cpp)
  file(GLOB avx2vnni_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx2vnni/*.cpp)
  file(GLOB avx512_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx512/*.cpp)
  file(GLOB avx512vnni_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx512vnni/*.cpp)
  set(avx2_options -mavx2 -mfma -mf16c ${quick_to_compile})
  set_source_files_properties(${avx2_sources} PROPERTIES COMPILE_OPTIONS "${avx2_options}")
  set_source_files_properties(${avx2vnni_sources} PROPERTIES COMPILE_OPTIONS "${avx2_options};-mavxvnni")
  # GCC 12 takes the undefined operands of its own AVX-512 header for mistakes.
  set(avx512_options -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -Wno-uninitialized
    -Wno-maybe-uninitialized ${quick_to_compile})
  set_source_files_properties(${avx512_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options}")
  set_source_files_properties(${avx512vnni_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options};-mavx512vnni")
  file(GLOB avx512bf16_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx512bf16/*.cpp)
  set_source_files_properties(${avx512bf16_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options};-mavx512bf16")
  file(GLOB avx512amx_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/avx512amx/*.cpp)
  set_source_files_properties(${avx512amx_sources} PROPERTIES COMPILE_OPTIONS "${avx512_options};-mamx-tile")
  list(FILTER native_sources EXCLUDE REGEX "native/kernels/neon")
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND NOT MSVC)
  file(GLOB neon_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/neon/*.cpp)
  set_source_files_properties(${neon_sources} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod")
  file(GLOB neoni8mm_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/neoni8mm/*.cpp)
  set_source_files_properties(${neoni8mm_sources} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod+i8mm")
  list(FILTER native_sources EXCLUDE REGEX "native/kernels/avx")
else()
  list(FILTER native_sources EXCLUDE REGEX "native/kernels/(avx|neon)")
endif()
set_target_properties(_native PROPERTIES SOURCES "${native_sources}")

file(GLOB cython_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/tokenizer/*.pyx)
foreach(source ${cython_sources})
  get_filename_component(stem ${source} NAME_WE)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/cython/${stem}.cpp)
  file(GLOB cython_includes CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/tokenizer/*.pxd
    ${CMAKE_CURRENT_SOURCE_DIR}/native/tokenizer/*.h)
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cython
    COMMAND ${Python_EXECUTABLE} -m cython --cplus -3 -o ${generated}.new ${source}
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${generated}.new ${generated}
    DEPENDS ${source} ${cython_includes})
  python_add_library(tokenizer_${stem} MODULE WITH_SOABI ${generated})
  set_target_properties(tokenizer_${stem} PROPERTIES OUTPUT_NAME ${stem})
  target_include_directories(tokenizer_${stem} PRIVATE native/tokenizer)
  install(TARGETS tokenizer_${stem} COMPONENT quire LIBRARY DESTINATION quire/_tokenizer RUNTIME DESTINATION quire/_tokenizer)
endforeach()
