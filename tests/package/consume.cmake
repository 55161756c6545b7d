# cmake -D build=… -D source=… -D work=… -D torch=…/libtorch_cpu.so -D generator=… -D compiler=… -D launcher=… -P consume.cmake
cmake_minimum_required(VERSION 3.25)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
file(COPY ${source}/examples/hello_troupe ${source}/examples/custom_strategy ${source}/examples/external_project DESTINATION ${work})

# run(COMMAND...): its output in `output`; any failure ends the test.
macro(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " words)
    message(FATAL_ERROR "${words}\n${output}\nexit code ${result}")
  endif()
endmacro()
macro(must_contain text)
  string(REGEX REPLACE "[ \n]+" " " words "${output}")  # CMake wraps its messages
  string(FIND "${words}" "${text}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "'${text}' is missing in:\n${output}")
  endif()
endmacro()

run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix})

# A package may be moved, so no file that CMake reads names the tree that it came from.
file(GLOB_RECURSE files ${prefix}/*.cmake)
foreach(file ${files})
  file(STRINGS ${file} lines REGEX "${source}")
  if(lines)
    message(FATAL_ERROR "${file} names the source tree: ${lines}")
  endif()
endforeach()
file(RENAME ${prefix} ${work}/moved)
set(prefix ${work}/moved)

# Without LibTorch the message says what to pass.
set(ENV{CMAKE_PREFIX_PATH} ${prefix})
set(configure ${CMAKE_COMMAND} -G ${generator} -D CMAKE_BUILD_TYPE=Release -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CXX_COMPILER_LAUNCHER=${launcher}
  -S ${work}/hello_troupe)
execute_process(COMMAND ${configure} -B ${work}/without_torch OUTPUT_QUIET ERROR_VARIABLE output RESULT_VARIABLE result)
if(result EQUAL 0)
  message(FATAL_ERROR "configured without LibTorch")
endif()
must_contain("-DTorch_DIR=<site-packages>/torch/share/cmake/Torch")

# Each project configures alone, with what torch.utils.cmake_prefix_path says, as its own page shows.
cmake_path(SET torch_prefix NORMALIZE "${torch}/../../share/cmake")
run(${prefix}/bin/troupe new ${work}/my-digits)
must_contain("--config train.toml")
set(projects hello_troupe custom_strategy external_project my-digits)
foreach(project ${projects})
  run(${CMAKE_COMMAND} -G ${generator} -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_BUILD_TYPE=Release -S ${work}/${project} -B ${work}/alone/${project}
    -D CMAKE_PREFIX_PATH=${torch_prefix})
endforeach()

# Where TROUPE_SHARE is set, as in CI, one of them is built, another one for each commit.
if(DEFINED ENV{TROUPE_SHARE})
  string(SHA256 hash "$ENV{TROUPE_SHARE}")
  string(SUBSTRING ${hash} 0 7 digits)
  math(EXPR number "0x${digits} % 4")
  list(GET projects ${number} projects)
endif()

# They are built together, on all cores, and for Debug: the package holds no Debug libraries.
file(WRITE ${work}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(projects CXX)
find_package(troupe 0.1 REQUIRED)
enable_testing()
foreach(folder ${projects})
  add_subdirectory(\${folder})
endforeach()
")
set(configure ${CMAKE_COMMAND} -G ${generator} -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CXX_COMPILER_LAUNCHER=${launcher} -D CMAKE_PREFIX_PATH=${torch_prefix})
run(${configure} -S ${work} -B ${work}/build -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-O0)
run(${CMAKE_COMMAND} --build ${work}/build)

if(hello_troupe IN_LIST projects)
  run(${work}/build/hello_troupe/hello_troupe --max_steps 20 --checkpoint_dir ${work}/checkpoints)
  must_contain("held-out")
  run(${prefix}/bin/troupe launch --nproc 2 --run-dir ${work}/run ${work}/build/hello_troupe/hello_troupe --max_steps 20 --checkpoint_dir ${work}/checkpoints2)
  must_contain("[rank 0]")
endif()

# A strategy of one's own, with its own actor: trained on two processes, and held against the conformance suite.
if(custom_strategy IN_LIST projects)
  run(${prefix}/bin/troupe launch --nproc 2 --run-dir ${work}/run3 ${work}/build/custom_strategy/custom_strategy --strategy gossip --max_steps 20
    --checkpoint_dir ${work}/checkpoints3)
  must_contain("model: gossip; 2 ranks")
  run(${work}/build/custom_strategy/check_strategy 5)
  must_contain("gossip conforms")
endif()

# What `troupe new` writes, started as it says.
if(my-digits IN_LIST projects)
  run(${prefix}/bin/troupe launch --nproc 2 --run-dir ${work}/run4 ${work}/build/my-digits/my-digits --config ${work}/my-digits/train.toml --epochs 3
    --checkpoint_dir ${work}/checkpoints4)
  must_contain("2 ranks, backend shm")
  must_contain("1,438 to train, 359 held out")
  must_contain("best held-out accuracy: 9")
endif()

# A project with a test of its own.
if(external_project IN_LIST projects)
  run(${CMAKE_CTEST_COMMAND} --test-dir ${work}/build/external_project --no-tests=error --output-on-failure)
  must_contain("two ranks train")
  run(${prefix}/bin/troupe launch --nproc 2 --run-dir ${work}/run_external ${work}/build/external_project/train --epochs 2 --checkpoint_dir ${work}/checkpoints_external --hidden 16)
  must_contain("held-out")
  run(${work}/build/external_project/predict ${work}/checkpoints_external 0.5)
  must_contain("predicted ")
endif()
