# Build ggml from vendor/ (fetched if absent) or QUIRE_GGML_DIR: shared, without OpenMP, each backend a loadable module.
find_package(Python REQUIRED COMPONENTS Interpreter)
if(QUIRE_PYTHON)
  find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
endif()

if(QUIRE_GGML_DIR)
  set(ggml_dir ${QUIRE_GGML_DIR})
else()
  set(ggml_dir ${CMAKE_CURRENT_SOURCE_DIR}/vendor/ggml)
  if(NOT EXISTS ${ggml_dir}/QUIRE-PIN)
    execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/vendor/fetch.py RESULT_VARIABLE fetched)
    if(NOT fetched EQUAL 0)
      message(FATAL_ERROR "vendor/fetch.py could not fetch ggml: see above, or use another copy with -DQUIRE_GGML_DIR=")
    endif()
  endif()
endif()
if(NOT EXISTS ${ggml_dir}/CMakeLists.txt)
  message(FATAL_ERROR "QUIRE_GGML_DIR is not a ggml source tree: ${ggml_dir} has no CMakeLists.txt")
endif()
if((QUIRE_VULKAN OR QUIRE_CUDA) AND NOT QUIRE_GGML_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/vendor/edits.py RESULT_VARIABLE edited)
  if(NOT edited EQUAL 0)
    message(FATAL_ERROR "vendor/edits.py could not edit ${ggml_dir}: see above")
  endif()
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
set(GGML_OPENMP OFF CACHE BOOL "" FORCE)
set(GGML_LLAMAFILE OFF CACHE BOOL "" FORCE)
set(GGML_CPU_REPACK OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(GGML_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
# Without this, ggml would record the commit of the repository around it: Quire's, or the user's.
set(GIT_EXE "" CACHE FILEPATH "" FORCE)
set(GGML_ALL_WARNINGS OFF CACHE BOOL "" FORCE)
foreach(backend ${QUIRE_BACKENDS})
  set(GGML_${backend} ${QUIRE_${backend}} CACHE BOOL "" FORCE)
endforeach()
set(GGML_BLAS OFF CACHE BOOL "" FORCE)
# ggml's default is off, and without graphs a step of one token costs a thousand kernel launches.
set(GGML_CUDA_GRAPHS ON CACHE BOOL "" FORCE)

# ELF's loader may bind calls to another library's functions of the same name, so ours are renamed.
if(UNIX AND NOT APPLE)
  set(own_names ${CMAKE_BINARY_DIR}/ggml-own-names.h)
  execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/own_names.py ${ggml_dir} ${own_names}
    RESULT_VARIABLE named)
  if(NOT named EQUAL 0)
    message(FATAL_ERROR "native/cmake/own_names.py could not write ${own_names}: see above")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/own_names.py)
  set(own_names_option -include ${own_names})
endif()

# ggml built as modules does not support -march=native, so the instruction sets of QUIRE_MARCH, by default this
# machine's, are read from the compiler and named one by one.
set(GGML_NATIVE OFF CACHE BOOL "" FORCE)
set(GGML_CPU_ALL_VARIANTS ${QUIRE_PORTABLE} CACHE BOOL "" FORCE)
if(NOT QUIRE_PORTABLE AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT MSVC)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=${QUIRE_MARCH} -dM -E -x c++ /dev/null OUTPUT_VARIABLE native_macros)
  set(pairs SSE42 __SSE4_2__ AVX __AVX__ AVX2 __AVX2__ BMI2 __BMI2__ FMA __FMA__ F16C __F16C__ AVX512 __AVX512BW__
            AVX512_VBMI __AVX512VBMI__ AVX512_VNNI __AVX512VNNI__ AVX512_BF16 __AVX512BF16__ AVX_VNNI __AVXVNNI__)
  while(pairs)
    list(POP_FRONT pairs feature macro)
    if(native_macros MATCHES "#define ${macro} ")
      set(GGML_${feature} ON CACHE BOOL "" FORCE)
    else()
      set(GGML_${feature} OFF CACHE BOOL "" FORCE)
    endif()
  endwhile()
elseif(NOT QUIRE_PORTABLE AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND NOT MSVC)
  include(${CMAKE_CURRENT_LIST_DIR}/arm_arch.cmake)
  quire_arm_arch(${CMAKE_CXX_COMPILER} architecture)
  set(GGML_CPU_ARM_ARCH ${architecture} CACHE STRING "" FORCE)
endif()

# Targets created below have the option from the start; targets of our own code, created later, add it themselves.
get_directory_property(options COMPILE_OPTIONS)
add_compile_options(${own_names_option})
add_subdirectory(${ggml_dir} ggml EXCLUDE_FROM_ALL)
set_directory_properties(PROPERTIES COMPILE_OPTIONS "${options}")
get_directory_property(ggml_version DIRECTORY ${ggml_dir} DEFINITION GGML_VERSION)

# Wheels cannot hold the symbolic links that versioned names need; the package loads its own copies by full path.
set(ggml_modules "")
# Wheels contain only ggml variants that differ much in speed, as Quire's own kernels do most of the work.  That halves
# the modules, the size and the compile time.  The other variants are built empty, because ggml depends on them.
set(kept_variants x64 haswell icelake zen4 armv8.0_1 armv8.2_2 armv8.6_1 armv8.6_2 apple_m1 apple_m2_m3 apple_m4)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/nothing.c CONTENT "typedef int nothing;\n")
foreach(module ${GGML_AVAILABLE_BACKENDS})
  string(REGEX REPLACE "^ggml-cpu-" "" variant ${module})
  if(QUIRE_PORTABLE AND TARGET ${module} AND NOT variant STREQUAL module AND NOT variant IN_LIST kept_variants)
    set_property(TARGET ${module} PROPERTY SOURCES ${CMAKE_BINARY_DIR}/nothing.c)
  elseif(TARGET ${module})
    list(APPEND ggml_modules ${module})
  endif()
endforeach()
foreach(target ggml ggml-base ${ggml_modules})
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>")
  if(UNIX AND NOT APPLE)
    target_link_options(${target} PRIVATE -Wl,-Bsymbolic) # calls inside a library stay inside it
  endif()
  # Weights in an order of ggml's own, training and its reader of GGUF: nothing of ours asks for them.
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "(repack|ggml-opt|gguf)[.](cpp|h)$")
  set_property(TARGET ${target} PROPERTY SOURCES ${sources})
  if(QUIRE_SANITIZE) # Only our use of ggml is checked: its own arithmetic is not ours, and takes minutes to compile.
    target_compile_options(${target} PRIVATE -fno-sanitize=undefined)
  endif()
endforeach()
# Quire's own operations; vendor/edits.py patches ggml to call them.
if(TARGET ggml-cuda AND NOT QUIRE_GGML_DIR)
  target_sources(ggml-cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/cuda/operations.cu
    ${CMAKE_CURRENT_SOURCE_DIR}/native/cuda/batch_operations.cu
    ${CMAKE_CURRENT_SOURCE_DIR}/native/cuda/expert_operations.cu ${CMAKE_CURRENT_SOURCE_DIR}/native/cuda/arranged_matrix.cpp)
  target_include_directories(ggml-cuda PRIVATE ${ggml_dir}/src/ggml-cuda ${CMAKE_CURRENT_SOURCE_DIR}/native)
  target_compile_definitions(ggml-cuda PRIVATE QUIRE_CUDA_OPERATIONS)
endif()
if(TARGET ggml-vulkan AND NOT QUIRE_GGML_DIR)
  foreach(shader paged_attention add_splits)
    set(code ${CMAKE_BINARY_DIR}/shaders/${shader}.inc)
    add_custom_command(OUTPUT ${code} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/vulkan/${shader}.comp
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/shaders
      COMMAND ${Vulkan_GLSLC_EXECUTABLE} -O -mfmt=c ${CMAKE_CURRENT_SOURCE_DIR}/native/vulkan/${shader}.comp -o ${code})
    list(APPEND quire_shaders ${code})
  endforeach()
  add_custom_target(quire_shaders DEPENDS ${quire_shaders}) # ggml's folder does not see the commands above
  add_dependencies(ggml-vulkan quire_shaders)
  target_sources(ggml-vulkan PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/vulkan/operations.cpp)
  target_include_directories(ggml-vulkan PRIVATE ${ggml_dir}/src/ggml-vulkan ${CMAKE_CURRENT_SOURCE_DIR}/native
    ${CMAKE_BINARY_DIR}/shaders)
  target_compile_definitions(ggml-vulkan PRIVATE QUIRE_VULKAN_OPERATIONS)
endif()
# A note in each module's file names its build, so that it can be checked without running the module's code.
set(quire_module_version "ggml ${ggml_version}")
if(NOT QUIRE_GGML_DIR)
  file(STRINGS ${ggml_dir}/QUIRE-PIN pin LIMIT_COUNT 1)
  string(SUBSTRING "${pin}" 0 12 pin)
  string(APPEND quire_module_version " ${pin}")
endif()
if(UNIX AND NOT APPLE)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/module_note.c.in ${CMAKE_BINARY_DIR}/module_note.c @ONLY)
  foreach(module ${ggml_modules})
    target_sources(${module} PRIVATE ${CMAKE_BINARY_DIR}/module_note.c)
  endforeach()
endif()
# The modules find the libraries they are linked to by these two names.  A ggml of another package, already loaded or in
# LD_LIBRARY_PATH, must not have the same names.
set_target_properties(ggml PROPERTIES OUTPUT_NAME quire-ggml)
set_target_properties(ggml-base PROPERTIES OUTPUT_NAME quire-ggml-base)
add_custom_target(quire_backends ALL DEPENDS ggml ${ggml_modules})
install(TARGETS ggml ggml-base ${ggml_modules} COMPONENT quire
  LIBRARY DESTINATION quire/lib RUNTIME DESTINATION quire/lib)
foreach(licence ${ggml_dir}/LICENSE ${ggml_dir}/../LICENSE)
  if(EXISTS ${licence})
    install(FILES ${licence} COMPONENT quire DESTINATION quire/lib RENAME LICENSE.ggml)
    break()
  endif()
endforeach()
