#include "launch/loop/console.hpp"

#include "launch/process/terminal.hpp"

#include <limits>
#include <set>

#include "tests/catch.hpp"

using namespace troupe;

TEST_CASE("[T03] a window adds up losses by samples and times by steps") {
  StepWindow window;
  StepReport report;
  report.loss = 2;
  report.samples = 10;
  report.correct = 5;
  report.step_ms = 10;
  report.exposed_ms = 1;
  report.data_ms = 2;
  window.add(report);
  report.data_ms = 0;
  report.loss = 5;
  report.samples = 30;
  report.correct = 30;
  window.add(report);
  CHECK(window.loss() == Approx(170.0 / 40));
  CHECK(window.accuracy() == Approx(35.0 / 40));
  CHECK(window.mean_step_ms() == 10);
  CHECK(window.exposed_share() == Approx(0.1));
  CHECK(window.data_share() == Approx(0.1));
  CHECK(window.samples_per_second() == Approx(2000));
  report.committed = false;
  window.add(report);
  CHECK(window.skipped == 1);
  CHECK(window.samples == 40);

  MetricsReport skipped;
  skipped.window.add(report);
  CHECK_THAT(train_line(skipped), Catch::Contains("loss -  "));
  CHECK_THAT(to_json(record_of(skipped)),
             Catch::Contains("\"loss_metrics/global_avg_loss\":null") && Catch::Contains("\"skipped_steps\":1.0"));
}

TEST_CASE("[T05] a progress bar is plain ASCII of at most the terminal's width") {
  MetricsReport report;
  report.step = 50;
  report.total_steps = 100;
  const auto columns = GENERATE(20, 80, 120, 300);
  const auto bar = progress_bar(report, static_cast<std::size_t>(columns));
  CHECK(bar.size() <= static_cast<std::size_t>(columns));
  for (const char c : bar) CHECK((c >= ' ' && c <= '~'));
  CHECK_THAT(train_line(report), Catch::Contains("step 50/100"));
}

TEST_CASE("[T05] the time that is left is in the bar once it is known") {
  MetricsReport report;
  CHECK_THAT(progress_bar(report, 200), !Catch::Contains("left"));
  report.seconds_left = 59.7;
  CHECK_THAT(progress_bar(report, 200), Catch::Contains("1:00 left"));
  report.seconds_left = 2 * 3600 + 61;
  CHECK_THAT(progress_bar(report, 200), Catch::Contains("2:01:01 left"));
}

TEST_CASE("[T05] a log line has its keys in the order of torchtitan's, and tokens where there are some") {
  MetricsReport report;
  report.max_resident_gib = 1.25;
  report.tokens_per_sample = 32;
  StepReport step;
  step.loss = 3;
  step.samples = 10;
  step.step_ms = 100;
  step.gradient_norm = 0.5;
  report.window.add(step);
  CHECK_THAT(train_line(report), Catch::Contains("loss 3.0000  grad_norm 0.5  memory 1.25GiB  3200 tokens/s"));
  report.max_active_gib = 2.5;
  CHECK_THAT(train_line(report), Catch::Contains("memory 1.25GiB  device 2.50GiB  3200 tokens/s"));
}

TEST_CASE("[T05] a loss and a rate keep their significant digits, however small or large they are") {
  CHECK(loss_text(0.4312) == "0.4312");
  CHECK(loss_text(0.000012) == "1.2e-05");
  CHECK(loss_text(0.00123456) == "0.001235");
  CHECK(loss_text(2.302585) == "2.3026");
  CHECK(loss_text(12.3456) == "12.346");
  CHECK(loss_text(123.4) == "123.4");
  CHECK(loss_text(-0.00002) == "-2e-05");
  CHECK(loss_text(0) == "0");
  CHECK(loss_text(1e30) == "1e+30");
  CHECK(loss_text(std::numeric_limits<double>::quiet_NaN()).find("nan") != std::string::npos);
  CHECK(rate_text(787.4) == "787");
  CHECK(rate_text(99.97) == "100");
  CHECK(rate_text(12.34) == "12.3");
  CHECK(rate_text(9.97) == "10.0");
  CHECK(rate_text(0.05) == "0.05");
  MetricsReport report;
  StepReport step;
  step.loss = 1.2e-5;
  step.samples = 2;
  step.step_ms = 20'000;
  report.window.add(step);
  CHECK_THAT(train_line(report), Catch::Contains("loss 1.2e-05  0.1 samples/s  0.05 steps/s"));
  CHECK_THAT(progress_bar(report, 100), Catch::Contains("loss 1.2e-05"));
  ValidationReport validation;
  validation.loss = 3e-7;
  CHECK_THAT(validation_line(validation), Catch::Contains("held-out loss 3e-07"));
}

TEST_CASE(
    "[T05] a bar that becomes narrow keeps the step and the time left, and gives up exposed communication first") {
  MetricsReport report;
  report.step = 45, report.total_steps = 100, report.epoch = 1, report.epochs = 8, report.seconds_left = 80;
  StepReport step;
  step.loss = 0.4312, step.samples = 64, step.correct = 56, step.step_ms = 81.3;
  report.window.add(step);
  CHECK(progress_bar(report, 119) ==
        "[###.....]  45%  epoch 2/8  step  45/100  1:20 left  loss 0.4312   acc 87.50%    787 samples/s   81.3 ms  "
        "exposed  0.0%");
  CHECK(progress_bar(report, 79) == "[#...]  45%  step  45/100  1:20 left  loss 0.4312   acc 87.50%    787 samples/s");
  CHECK(progress_bar(report, 60) == "  45%  step  45/100  1:20 left  loss 0.4312   acc 87.50%");
  CHECK(progress_bar(report, 30) == "  45%  step  45/100  1:20 left");
}

TEST_CASE("[T05] a bar and what is beside it keep their places as the numbers change") {
  const auto columns = GENERATE(79, 99, 119);
  std::set<std::size_t> ends, epochs, losses;
  for (int number = 1; number <= 100; ++number) {
    MetricsReport report;
    report.step = number, report.total_steps = 100, report.epoch = (number - 1) / 10, report.epochs = 10;
    report.seconds_left = 500 - number;
    StepReport step;
    step.loss = 2.0 / number, step.samples = 64, step.correct = 30 + 0.3 * number, step.step_ms = 9 + number;
    report.window.add(step);
    const auto bar = progress_bar(report, static_cast<std::size_t>(columns));
    ends.insert(bar.find(']')), epochs.insert(bar.find("epoch")), losses.insert(bar.find("loss"));
  }
  CHECK(ends.size() == 1);
  CHECK(epochs.size() == 1);
  CHECK(losses.size() == 1);
}

TEST_CASE("[T05] colours are around a bar's filled part, a label, a warning and an error, and nowhere else") {
  CHECK(with_colours("[##..]  50%") == "[\x1b[32m##\x1b[0m..]  50%");
  CHECK(with_colours("[rank 0] [##..]  50%") == "\x1b[2m[rank 0]\x1b[0m [\x1b[32m##\x1b[0m..]  50%");
  CHECK(with_colours("[rank 0] warning: slow") == "\x1b[2m[rank 0]\x1b[0m \x1b[33mwarning:\x1b[0m slow");
  CHECK(with_colours("error: no") == "\x1b[31merror:\x1b[0m no");
  for (const std::string plain : {"", "epoch 1/8  step 10/176  loss 1.8657", "[....]   0%", "[", "no warning: here"})
    CHECK(with_colours(plain) == plain);
}
