# cuda.cmake: kernels become cubins where nvcc is present, and are embedded as C arrays. Without
# nvcc the same library builds; it then has no GPU kernels, and says so when asked.
#
# SPDX-License-Identifier: Apache-2.0
find_program(MXA_NVCC nvcc HINTS /usr/local/cuda/bin)
find_package(Python3 COMPONENTS Interpreter)
file(GLOB MXA_KERNELS CONFIGURE_DEPENDS src/cuda/common/*.cu src/cuda/sm90/*.cu)
file(GLOB MXA_KERNEL_HEADERS CONFIGURE_DEPENDS src/cuda/*/*.h src/status.h)
set(MXA_CUBINS ${CMAKE_CURRENT_BINARY_DIR}/cubins.c)
if(MXA_NVCC AND Python3_Interpreter_FOUND)
  add_custom_command(OUTPUT ${MXA_CUBINS}
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/embed --nvcc ${MXA_NVCC}
      --root ${PROJECT_SOURCE_DIR} --include ${PROJECT_SOURCE_DIR}/src
      --include ${PROJECT_SOURCE_DIR}/include --out ${MXA_CUBINS}
      --json ${CMAKE_CURRENT_BINARY_DIR}/cubins.json ${MXA_KERNELS}
    DEPENDS ${MXA_KERNELS} ${MXA_KERNEL_HEADERS} ${PROJECT_SOURCE_DIR}/scripts/embed
    COMMENT "Compiling GPU kernels" VERBATIM)
else()
  message(STATUS "mxattn: no nvcc; the library will have no GPU kernels")
  file(WRITE ${MXA_CUBINS}
    "#include \"cuda/device.h\"\n\nconst mxa_cubin mxa_cubins[] = {{NULL, NULL, 0}};\n"
    "const int mxa_cubin_count = 0;\n")
endif()
