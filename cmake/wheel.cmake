# wheel.cmake: the library as a Python wheel carries it (MXA_WHEEL): one file without links to versions,
# asking for no symbol of glibc newer than 2.28. pyproject.toml sets the option; tests/python/test_python_wheel.py
# scans what comes out.
#
# SPDX-License-Identifier: Apache-2.0
option(MXA_WHEEL "build the library for a Python wheel (pyproject.toml)" OFF)
if(MXA_WHEEL)
  set_property(TARGET mxattn PROPERTY VERSION)
  set_property(TARGET mxattn PROPERTY SOVERSION)
  add_custom_target(wheel DEPENDS mxattn) # the command's file is called mxattn too
  install(TARGETS mxattn LIBRARY DESTINATION mxattn COMPONENT python)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    target_compile_options(mxattn_objects PRIVATE -include ${CMAKE_CURRENT_LIST_DIR}/glibc_2_28.h)
    # Older glibc has these functions in libraries of their own, which newer ones keep as empty files.
    target_link_options(mxattn PRIVATE -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed
      -Wl,--no-undefined)
  endif()
endif()
