# flags.cmake: language, warnings, sanitizers, and the instruction sets files are compiled for.
#
# SPDX-License-Identifier: Apache-2.0
include(CheckCCompilerFlag)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(MXA_WERROR "warnings are errors" OFF)
set(MXA_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")

# -ffp-contract=off: a multiply-add is fused only where the code says so, so that every ISA and
# compiler rounds at the same places.
add_library(mxattn_flags INTERFACE)
target_compile_options(mxattn_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off -fno-math-errno)
target_compile_definitions(mxattn_flags INTERFACE _GNU_SOURCE)
if(MXA_WERROR)
  target_compile_options(mxattn_flags INTERFACE -Werror)
endif()

# Everywhere, not only in the library: all of a program must agree on its sanitizer.
if(MXA_SANITIZE STREQUAL "address")
  set(MXA_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
elseif(MXA_SANITIZE STREQUAL "thread")
  set(MXA_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
elseif(MXA_SANITIZE)
  message(FATAL_ERROR "MXA_SANITIZE is '${MXA_SANITIZE}'; it must be address, thread or empty")
endif()
option(MXA_FUZZ "instrument for libFuzzer and build its programs (clang)" OFF)
if(MXA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
add_compile_options(${MXA_SANITIZE_FLAGS})
add_link_options(${MXA_SANITIZE_FLAGS})

# The suffix of a file names the instruction set it is compiled for. Where machine or compiler lack
# one, its files are left out and MXA_BUILD_<ISA> is not defined.
set(MXA_ISA_avx2 -mavx2 -mfma -mf16c)
set(MXA_ISA_avx512 ${MXA_ISA_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl)
set(MXA_ISA_avx512bf16 ${MXA_ISA_avx512} -mavx512bf16 -mavx512vbmi)
set(MXA_ISA_amx ${MXA_ISA_avx512bf16} -mamx-tile -mamx-bf16)
set(MXA_ISAS avx2 avx512 avx512bf16 amx CACHE STRING "instruction sets to build beyond portable C")

function(mxa_set_isa_flags sources_name)
  set(sources ${${sources_name}})
  foreach(isa avx2 avx512 avx512bf16 amx)
    string(TOUPPER ${isa} upper)
    set(flags ${MXA_ISA_${isa}})
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
      list(JOIN flags " " joined)
      check_c_compiler_flag("${joined}" MXA_COMPILER_HAS_${upper})
    endif()
    set(files ${sources})
    list(FILTER files INCLUDE REGEX "_${isa}\\.c$")
    if(MXA_COMPILER_HAS_${upper} AND isa IN_LIST MXA_ISAS)
      target_compile_definitions(mxattn_flags INTERFACE MXA_BUILD_${upper})
      foreach(file IN LISTS files)
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
      endforeach()
    else()
      message(STATUS "without ${isa} (${CMAKE_SYSTEM_PROCESSOR}, ${CMAKE_C_COMPILER_ID}, MXA_ISAS)")
      list(REMOVE_ITEM sources ${files} "")
    endif()
  endforeach()
  set(${sources_name} ${sources} PARENT_SCOPE)
endfunction()
