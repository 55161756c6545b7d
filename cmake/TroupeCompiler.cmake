# Compiler flags that every target of the project shares, and troupe_library(): one static library per folder.
add_library(troupe_flags INTERFACE)
target_compile_options(troupe_flags INTERFACE -Wall -Wextra -Wpedantic -Wno-unused-parameter -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_LAUNCHER STREQUAL "" OR NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TROUPE_CCACHE ccache)
  if(TROUPE_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TROUPE_CCACHE})
  endif()
endif()
# Where a step's time goes is LibTorch, and the files that say KERNELS; for the rest -O3 is 40 % of the compiler's time, and nothing else.
add_compile_options($<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # ccache needs the first to see through a precompiled header.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess;-Wno-restrict;-Wno-stringop-overflow>")
  # GCC looks for garbage each time its memory has doubled from 128 MB. Without: an eighth less time, an eighth more memory.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=4000000>")
  # GCC 12 finds an overflow in "text" + std::string (https://gcc.gnu.org/PR105651).
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>)
  endif()
endif()
find_program(TROUPE_MOLD mold)
if(TROUPE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(TROUPE_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=address,undefined)
elseif(TROUPE_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT TROUPE_SANITIZER STREQUAL "")
  message(FATAL_ERROR "TROUPE_SANITIZER is '${TROUPE_SANITIZER}'; it may be address or thread")
endif()

# Several files in one go: what many headers make the compiler do is then done once for all of them. Off: quicker after an edit, slower by
# half from scratch.
option(TROUPE_UNITY "Compile files of a folder together" ON)

# troupe_sources(TARGET LIBS.. PLAIN FILES.. CONTROL FILES..): the target's own sources have the precompiled header; FILES, which it gets too,
# do without, and CONTROL is not compiled together with PLAIN.
function(troupe_sources target)
  cmake_parse_arguments(ARG "" "" "LIBS;PLAIN;CONTROL" ${ARGN})
  get_target_property(own ${target} SOURCES)
  if(own)
    target_precompile_headers(${target} REUSE_FROM troupe_pch)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TROUPE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  foreach(part PLAIN CONTROL)
    if(NOT ARG_${part})
      continue()
    endif()
    string(TOLOWER ${target}_${part} objects)
    add_library(${objects} OBJECT ${ARG_${part}})
    target_link_libraries(${objects} PRIVATE troupe_flags ${ARG_LIBS})
    target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR})
    set_target_properties(${objects} PROPERTIES UNITY_BUILD ${TROUPE_UNITY} UNITY_BUILD_BATCH_SIZE 16)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
endfunction()

# troupe_library(NAME SOURCES... PLAIN... CONTROL... KERNELS... PUBLIC_LIBS ... PRIVATE_LIBS ...): static library troupe_NAME, alias
# troupe::NAME. PLAIN: without the precompiled header; CONTROL: also what the command `troupe` consists of, which is linked without
# LibTorch; KERNELS: plain, loops over numbers, -O3, without contraction, so that every processor computes the same bits.
function(troupe_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PLAIN;CONTROL;KERNELS;PUBLIC_LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(troupe_${name} STATIC ${ARG_SOURCES})
  add_library(troupe::${name} ALIAS troupe_${name})
  set_target_properties(troupe_${name} PROPERTIES EXPORT_NAME ${name})
  troupe_sources(troupe_${name} LIBS ${ARG_PUBLIC_LIBS} ${ARG_PRIVATE_LIBS} PLAIN ${ARG_PLAIN} ${ARG_KERNELS} CONTROL ${ARG_CONTROL})
  set_source_files_properties(${ARG_KERNELS} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>;-ffp-contract=off")
  target_include_directories(troupe_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                   $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/troupe>)
  target_compile_features(troupe_${name} PUBLIC cxx_std_20)
  target_link_libraries(troupe_${name} PUBLIC ${ARG_PUBLIC_LIBS} PRIVATE $<BUILD_INTERFACE:troupe_flags> ${ARG_PRIVATE_LIBS})
endfunction()
