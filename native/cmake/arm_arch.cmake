# Detect this machine's ARM architecture, in the form -march takes, by asking the compiler.
# ggml's CPU module would otherwise be built for the first ARMv8, whose products of bytes are several times slower.
#   quire_arm_arch(COMPILER RESULT): "armv8.2-a+dotprod+i8mm"; for a cross compiler its default architecture
function(quire_arm_arch compiler result)
  foreach(option "-mcpu=native" "")
    execute_process(COMMAND ${compiler} ${option} -dM -E -x c++ /dev/null OUTPUT_VARIABLE macros RESULT_VARIABLE failed
      ERROR_QUIET)
    if(NOT failed)
      break()
    endif()
  endforeach()
  quire_arm_arch_of("${macros}" architecture)
  set(${result} ${architecture} PARENT_SCOPE)
endfunction()

#   quire_arm_arch_of(MACROS RESULT): the architecture that a compiler's predefined macros describe
function(quire_arm_arch_of macros result)
  set(tags "")
  set(pairs dotprod DOTPROD fp16 FP16_VECTOR_ARITHMETIC i8mm MATMUL_INT8 sve SVE)
  while(pairs)
    list(POP_FRONT pairs tag macro)
    if(macros MATCHES "#define __ARM_FEATURE_${macro} ")
      string(APPEND tags "+${tag}")
    endif()
  endwhile()
  if(tags STREQUAL "")
    set(architecture armv8-a)
  else()
    set(architecture armv8.2-a${tags})
  endif()
  set(${result} ${architecture} PARENT_SCOPE)
endfunction()
