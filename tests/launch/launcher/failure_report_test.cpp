#include "launch/launcher/failure_report.hpp"

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[T06] a failure is told with rank, host, how, log and the next command to type") {
  const FailedProcess failed{2, "h1", "exit code 1", "runs/a b/rank2.log", "error: rank 2, compute, step 7: no"};
  CHECK(describe_failure(failed, false) ==
        "troupe: rank 2 on h1 failed: exit code 1; its log: runs/a b/rank2.log\n"
        "troupe: its last line: error: rank 2, compute, step 7: no\n"
        "troupe: next: tail -n 50 'runs/a b/rank2.log'\n");
  CHECK_THAT(describe_failure({2, "h1", "exit code 1", "/runs/rank2.log", ""}, true),
             Catch::Contains("troupe: next: ssh h1 tail -n 50 /runs/rank2.log\n") && !Catch::Contains("last line"));
}

TEST_CASE("[T06] a job that was saved and ended says how it goes on") {
  CHECK(resume_command({"troupe", "launch", "./train", "--name", "it's"}, "auto") ==
        "troupe launch ./train --name 'it'\\''s' --resume auto");
  CHECK(resume_command({"./train", "--resume", "latest"}, "auto") == "./train --resume latest");
}

TEST_CASE("[T06] [R01] a job that was saved goes on from there, not from the step or path with which it began") {
  CHECK(resume_command({"./train", "--resume", "runs/A@200", "--lr", "1"}, "runs/A") ==
        "./train --resume runs/A --lr 1");
  CHECK(resume_command({"./train", "--resume=runs/A@200"}, "runs/A") == "./train --resume=runs/A");
  CHECK(resume_command({"./train", "--checkpoint.resume", "/ck/step-00000200"}, "auto") ==
        "./train --checkpoint.resume auto");
  CHECK(resume_command({"./train", "--resume=auto", "--note", "a --resume b"}, "runs/A") ==
        "./train --resume=auto --note 'a --resume b'");
  CHECK(resume_command({"./train"}, "runs/A") == "./train --resume runs/A");  // TROUPE_RESUME or a file named a step
}
