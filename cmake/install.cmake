# make install: headers, both libraries, the command line, CMake config and pkg-config files.
include(CMakePackageConfigHelpers)

install(DIRECTORY include/pestle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} OPTIONAL)
install(TARGETS pestle pestle_static EXPORT pestle-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET pestle_cli)
  install(TARGETS pestle_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/pestle)
install(EXPORT pestle-targets NAMESPACE pestle:: DESTINATION ${config_dir})
configure_package_config_file(cmake/pestle-config.cmake.in pestle-config.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(pestle-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pestle-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/pestle-config-version.cmake DESTINATION ${config_dir})

# pkg-config finds the prefix from its own place, so an installed tree can be moved.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH PESTLE_PC_PREFIX /${pc_dir} /)
string(REGEX REPLACE "/$" "" PESTLE_PC_PREFIX "${PESTLE_PC_PREFIX}")
configure_file(cmake/pestle.pc.in pestle.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/pestle.pc DESTINATION ${pc_dir})
