# `./dev package deb`: what `cmake --install` installs, as a Debian package. LibTorch is in no Debian package, so the package names a place
# for it, /usr/lib/troupe/torch, and says how to fill it (cmake/package/README.Debian). Nothing is downloaded by installing it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VENDOR "The Troupe authors")
set(CPACK_PACKAGE_CONTACT "The Troupe authors <maintainers@troupe.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# Of the command, found by what it links; of a program that is built against the package, what troupeConfig.cmake looks for.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${libtorch_folder})
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libasio-dev, libcaf-dev, libcereal-dev, libcpp-httplib-dev, libgloo-dev, libssl-dev, libtomlplusplus-dev, \
libxxhash-dev, nlohmann-json3-dev, prometheus-cpp-dev, zlib1g-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake, g++, ninja-build, openssh-client, python3-venv")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/cmake/package/postinst)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package/prepare_deb.cmake)
set(CPACK_TROUPE_SOURCE_DIR ${PROJECT_SOURCE_DIR})
include(CPack)
