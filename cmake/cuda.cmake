# cuda.cmake: kernels become cubins where nvcc is present, one command for each file and arch, and
# are embedded as C arrays. Without nvcc the same library builds; it then has no GPU kernels, and
# says so when asked.
#
# The folder of a kernel says what it is compiled for: common for every arch, sm90 and sm100 for one.
#
# SPDX-License-Identifier: Apache-2.0
find_program(MXA_NVCC nvcc HINTS /usr/local/cuda/bin)
find_package(Python3 COMPONENTS Interpreter)
option(MXA_LINEINFO "line tables in the cubins, for profilers and compute-sanitizer" OFF)
set(MXA_EMBED_LINEINFO $<$<BOOL:${MXA_LINEINFO}>:--lineinfo>)
set(MXA_ARCHS_common 90a 100a)
set(MXA_ARCHS_sm90 90a)
set(MXA_ARCHS_sm100 100a)
set(MXA_EMBED ${PROJECT_SOURCE_DIR}/scripts/embed)
set(MXA_TILES ${PROJECT_SOURCE_DIR}/scripts/tiles)
set(MXA_CUBINS ${CMAKE_CURRENT_BINARY_DIR}/cubins.c)
set(MXA_CUBINS_JSON ${CMAKE_CURRENT_BINARY_DIR}/cubins.json)
set(MXA_CUBIN_FILES)
if(MXA_NVCC AND Python3_Interpreter_FOUND)
  foreach(folder common sm90 sm100)
    file(GLOB kernels CONFIGURE_DEPENDS src/cuda/${folder}/*.cu)
    foreach(kernel IN LISTS kernels)
      get_filename_component(stem ${kernel} NAME_WE)
      foreach(arch IN LISTS MXA_ARCHS_${folder})
        set(cubin ${CMAKE_CURRENT_BINARY_DIR}/cubins/${arch}/${folder}/${stem}.cubin)
        add_custom_command(OUTPUT ${cubin}
          COMMAND ${Python3_EXECUTABLE} ${MXA_EMBED} compile --nvcc ${MXA_NVCC} --arch ${arch}
            --root ${PROJECT_SOURCE_DIR} ${MXA_EMBED_LINEINFO} --out ${cubin}
            ${kernel}
          COMMAND_EXPAND_LISTS
          DEPENDS ${kernel} ${MXA_EMBED}
          DEPFILE ${CMAKE_CURRENT_BINARY_DIR}/cubins/${arch}/${folder}/${stem}.d
          COMMENT "Compiling ${folder}/${stem}.cu for sm_${arch}" VERBATIM)
        list(APPEND MXA_CUBIN_FILES ${cubin})
      endforeach()
    endforeach()
  endforeach()
else()
  message(STATUS "mxattn: no nvcc; the library will have no GPU kernels")
endif()
if(Python3_Interpreter_FOUND)
  add_custom_command(OUTPUT ${MXA_CUBINS} BYPRODUCTS ${MXA_CUBINS_JSON}
    COMMAND ${Python3_EXECUTABLE} ${MXA_EMBED} link --out ${MXA_CUBINS} --json ${MXA_CUBINS_JSON}
      ${MXA_CUBIN_FILES}
    COMMAND ${Python3_EXECUTABLE} ${MXA_TILES} --root ${PROJECT_SOURCE_DIR} ${MXA_CUBINS_JSON}
    DEPENDS ${MXA_CUBIN_FILES} ${MXA_EMBED} ${MXA_TILES}
    COMMENT "Embedding GPU kernels" VERBATIM)
  add_custom_target(cubins DEPENDS ${MXA_CUBINS})
else()
  file(WRITE ${MXA_CUBINS}
    "#include \"cuda/device.h\"\n\nconst mxa_cubin mxa_cubins[] = {{NULL, 0, NULL, 0}};\n"
    "const int mxa_cubin_count = 0;\n")
endif()
