# The modules that Python imports: one extension module over the core, and the Cython tokenizers.
find_package(pybind11 CONFIG QUIET)
if(NOT pybind11_FOUND)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_package(pybind11 CONFIG REQUIRED)
endif()

# Copy pybind11's headers: pip builds in an environment with a new path each time, and objects that depend on that path
# would be recompiled by every install.
set(bindings_include ${CMAKE_CURRENT_BINARY_DIR}/include)
file(GLOB_RECURSE headers RELATIVE ${pybind11_INCLUDE_DIR} ${pybind11_INCLUDE_DIR}/pybind11/*.h)
foreach(header ${headers})
  get_filename_component(folder ${bindings_include}/${header} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(COPY_FILE ${pybind11_INCLUDE_DIR}/${header} ${bindings_include}/${header} ONLY_IF_DIFFERENT)
endforeach()

# pybind11's templates take half of the compile time, so several files are compiled together to share them.
file(GLOB bindings_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bindings/*.cpp)
if(QUIRE_TESTING)
  file(GLOB testing_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/bindings/testing/*.cpp)
  list(APPEND bindings_sources ${testing_sources})
endif()
add_library(quire_bindings OBJECT ${bindings_sources})
set_target_properties(quire_bindings PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
target_include_directories(quire_bindings SYSTEM PRIVATE ${bindings_include})
target_link_libraries(quire_bindings PRIVATE Python::Module ggml-base)
python_add_library(_native MODULE WITH_SOABI
  $<TARGET_OBJECTS:quire_core> $<TARGET_OBJECTS:quire_kernels> $<TARGET_OBJECTS:quire_bindings>)
set_target_properties(_native PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(_native PRIVATE ggml ggml-base)
target_include_directories(quire_bindings PRIVATE ${own_includes})
target_compile_options(quire_bindings PRIVATE ${own_options} ${own_names_option})
target_compile_definitions(quire_bindings PRIVATE $<$<CONFIG:Debug>:QUIRE_DEBUG> $<$<BOOL:${QUIRE_TESTING}>:QUIRE_TESTING>)
# Bindings have no hot loops, and optimizing them further takes a quarter of their compile time.
target_compile_options(quire_bindings PRIVATE $<$<AND:$<CONFIG:Release>,$<NOT:$<CXX_COMPILER_ID:MSVC>>>:-O1>)
if(QUIRE_SANITIZE)
  # Compiles in a third of the time; this code is little more than pybind11's templates.
  target_compile_options(quire_bindings PRIVATE -O0 -fno-sanitize=alignment,vptr)
endif()
set(origin "$<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>")
set_target_properties(_native PROPERTIES INSTALL_RPATH "${origin}/lib" BUILD_WITH_INSTALL_RPATH ${QUIRE_PORTABLE})
install(TARGETS _native COMPONENT quire LIBRARY DESTINATION quire RUNTIME DESTINATION quire)

file(GLOB cython_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tokenizer/*.pyx)
foreach(source ${cython_sources})
  get_filename_component(stem ${source} NAME_WE)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/cython/${stem}.cpp)
  file(GLOB cython_includes CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/tokenizer/*.pxd
    ${CMAKE_CURRENT_SOURCE_DIR}/tokenizer/*.h)
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/cython
    COMMAND ${Python_EXECUTABLE} -m cython --cplus -3 -o ${generated}.new ${source}
    COMMAND ${CMAKE_COMMAND} -E copy_if_different ${generated}.new ${generated}
    DEPENDS ${source} ${cython_includes})
  python_add_library(tokenizer_${stem} MODULE WITH_SOABI ${generated})
  set_target_properties(tokenizer_${stem} PROPERTIES OUTPUT_NAME ${stem})
  target_include_directories(tokenizer_${stem} PRIVATE tokenizer ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT stem STREQUAL "detokenizer")
    # As fast as with -O3, which compiles a quarter longer.
    target_compile_options(tokenizer_${stem} PRIVATE $<$<AND:$<CONFIG:Release>,$<NOT:$<CXX_COMPILER_ID:MSVC>>>:-O2>)
  endif()
  set_property(GLOBAL APPEND PROPERTY quire_tokenizers tokenizer_${stem})
  install(TARGETS tokenizer_${stem} COMPONENT quire LIBRARY DESTINATION quire/_tokenizer RUNTIME DESTINATION quire/_tokenizer)
endforeach()
