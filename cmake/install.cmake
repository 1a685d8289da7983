# install.cmake: headers, both libraries, the command, pkg-config and a CMake package.
#
# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(DIRECTORY include/mxattn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS mxattn mxattn_static EXPORT mxattn_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET mxattn_command)
  install(TARGETS mxattn_command DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(MXA_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/mxattn)
install(EXPORT mxattn_targets NAMESPACE mxattn:: DESTINATION ${MXA_CMAKE_DIR})
configure_package_config_file(cmake/mxattn-config.cmake.in
  ${PROJECT_BINARY_DIR}/mxattn-config.cmake INSTALL_DESTINATION ${MXA_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mxattn-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mxattn-config.cmake
  ${PROJECT_BINARY_DIR}/mxattn-config-version.cmake DESTINATION ${MXA_CMAKE_DIR})

configure_file(cmake/mxattn.pc.in ${PROJECT_BINARY_DIR}/mxattn.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/mxattn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
