# fuzz.cmake: each tests/fuzz/fuzz_NAME.c becomes a replay program and a ctest fuzz_NAME; with
# MXA_FUZZ (clang) also a libFuzzer program fuzz_NAME_libfuzzer.
#
# SPDX-License-Identifier: Apache-2.0
set(MXA_FUZZ_MUTATIONS 3000)
file(GLOB MXA_FUZZ_TARGETS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
foreach(source IN LISTS MXA_FUZZ_TARGETS)
  get_filename_component(target ${source} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" name ${target})
  add_executable(${target} ${source} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c)
  set(programs ${target})
  if(MXA_FUZZ)
    add_executable(${target}_libfuzzer ${source})
    target_link_options(${target}_libfuzzer PRIVATE -fsanitize=fuzzer)
    list(APPEND programs ${target}_libfuzzer)
  endif()
  foreach(program IN LISTS programs)
    target_link_libraries(${program} PRIVATE mxattn_test_lib)
    if(TARGET mxattn_tools)
      target_link_libraries(${program} PRIVATE mxattn_tools)
    endif()
  endforeach()
  add_test(NAME ${target} COMMAND ${target} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}
    ${MXA_FUZZ_MUTATIONS})
  set_tests_properties(${target} PROPERTIES TIMEOUT ${MXA_TEST_SECONDS})
endforeach()
