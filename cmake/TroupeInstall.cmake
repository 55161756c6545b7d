# cmake --install: libraries, headers, the `troupe` command, the data set that ships with the project, and the package that
# find_package(troupe) reads. Headers that a program includes bring in others, so all of them are installed.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)

install(TARGETS troupe_error troupe_config troupe_hosts troupe_communicator troupe_tensor_io troupe_actors troupe_strategies troupe_launch troupe_troupe troupe_testing EXPORT troupe
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT troupe NAMESPACE troupe:: FILE troupeTargets.cmake DESTINATION ${package_folder})
install(DIRECTORY tensor_io actors strategies launch troupe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe
  FILES_MATCHING PATTERN "*.hpp" PATTERN gloo_missing EXCLUDE PATTERN simulator EXCLUDE)
# Not INSTALL_RPATH_USE_LINK_PATH: it leaves out what lies in the source tree, as .venv does.
cmake_path(GET LibTorch_cpu_LIBRARY PARENT_PATH libtorch_folder)
set_target_properties(troupe-check-ranks troupe-checkpoint troupe-train PROPERTIES INSTALL_RPATH ${libtorch_folder})
install(TARGETS troupe troupe-check-ranks troupe-checkpoint troupe-train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN site EXCLUDE)
install(DIRECTORY python/troupe DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe/python FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
install(FILES data/digits.csv.gz data/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/troupe)

# LibTorch promises no binary interface from one minor version to the next.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TROUPE_LIBTORCH_VERSION ${LibTorch_VERSION})
configure_package_config_file(cmake/troupeConfig.cmake.in ${CMAKE_BINARY_DIR}/troupeConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/troupeConfig.cmake ${CMAKE_BINARY_DIR}/troupeConfigVersion.cmake
  cmake/FindCAF.cmake cmake/FindCudaWheels.cmake cmake/FindHttplib.cmake cmake/FindLibTorch.cmake cmake/FindMicrohttpd.cmake cmake/FindTurboJPEG.cmake DESTINATION ${package_folder})
