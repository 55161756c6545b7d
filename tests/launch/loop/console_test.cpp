#include "launch/loop/console.hpp"

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
}
