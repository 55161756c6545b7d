# CPack runs this on the tree that becomes the package.
set(tree ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
find_program(PATCHELF patchelf REQUIRED)
foreach(program troupe-check-ranks troupe-checkpoint troupe-train)
  execute_process(COMMAND ${PATCHELF} --set-rpath /usr/lib/troupe/torch/lib ${tree}/bin/${program} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
file(MAKE_DIRECTORY ${tree}/lib/troupe)
file(COPY ${CPACK_TROUPE_SOURCE_DIR}/cmake/package/README.Debian DESTINATION ${tree}/share/doc/troupe)
file(COPY_FILE ${CPACK_TROUPE_SOURCE_DIR}/LICENSE ${tree}/share/doc/troupe/copyright)
# Not by the builder's umask.
file(CHMOD_RECURSE ${tree}/lib/troupe ${tree}/share/doc/troupe FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ
  DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
