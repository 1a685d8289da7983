# emu.cmake: the same kernels as strict C11, for the emulator: each .cu is included by a generated .c.
#
# SPDX-License-Identifier: Apache-2.0
option(MXA_EMU "build the emulator and the kernels for it" ON)
if(MXA_SANITIZE STREQUAL "thread")
  set(MXA_EMU OFF) # ThreadSanitizer does not follow fibers; the emulator uses one thread anyway
endif()

# A kernel's instructions are told apart by their return addresses, so calls must stay apart and have
# lines (-g1: those of inlined calls too, but no variables). A parameter struct aligned to 64 bytes is
# passed by value (psabi); kernels mix int and unsigned addresses as CUDA code does.
# WHY -O1: the emulator's time is its own, not the kernels'; -O3 took three times as long to compile them.
set(MXA_EMU_KERNEL_FLAGS -g1 -fno-optimize-sibling-calls -Wno-psabi -Wno-sign-conversion)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  list(APPEND MXA_EMU_KERNEL_FLAGS -O1)
endif()
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  list(APPEND MXA_EMU_KERNEL_FLAGS -fno-crossjumping -fno-tree-tail-merge)
endif()

# WHY not for every x86-64: fused multiply-adds in software, and no vectors of four doubles, were a tenth
# of a launch's time; a second copy of the kernels would take longer to compile than it saves. A machine
# without AVX2 is refused when the emulated devices are asked for (src/emu/driver.c).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND avx2 IN_LIST MXA_ISAS)
  list(JOIN MXA_ISA_avx2 " " joined)
  check_c_compiler_flag("${joined}" MXA_COMPILER_HAS_AVX2)
  if(MXA_COMPILER_HAS_AVX2)
    list(APPEND MXA_EMU_KERNEL_FLAGS ${MXA_ISA_avx2})
  endif()
endif()

set(MXA_EMU_SOURCES)
if(MXA_EMU)
  target_compile_definitions(mxattn_flags INTERFACE MXA_EMULATOR)
  file(GLOB kernels CONFIGURE_DEPENDS src/cuda/common/*.cu src/cuda/sm90/*.cu src/cuda/sm100/*.cu)
  set(declarations "")
  set(entries "")
  foreach(kernel IN LISTS kernels)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src ${kernel})
    string(REGEX REPLACE "[/.]" "_" unit ${name})
    set(source ${PROJECT_BINARY_DIR}/emu/${unit}.c)
    file(CONFIGURE OUTPUT ${source} CONTENT
      "#include \"${name}\"\n\nextern const char mxa_emu_unit_${unit};\nconst char mxa_emu_unit_${unit} = 0;\n")
    list(APPEND MXA_EMU_SOURCES ${source})
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${MXA_EMU_KERNEL_FLAGS}")
    string(APPEND declarations "extern const char mxa_emu_unit_${unit};\n")
    string(APPEND entries "    &mxa_emu_unit_${unit},\n")
  endforeach()
  # Names each unit, so that a linker takes them all out of the static library.
  set(source ${PROJECT_BINARY_DIR}/emu/units.c)
  file(CONFIGURE OUTPUT ${source} CONTENT
    "#include \"emu/launch.h\"\n\n${declarations}\nconst char *const mxa_emu_units[] = {\n${entries}    0,\n};\n")
  list(APPEND MXA_EMU_SOURCES ${source})
endif()
