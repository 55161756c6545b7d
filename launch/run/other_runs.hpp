#pragma once
#include <string>

namespace troupe {

struct RunChoice;

/// Before a resumed run touches a folder. `resume`: the user's words. `fresh_id`: of the job, which may be the run's if
/// its command could not be read ahead. Throws Error(usage) if the run's folder or its checkpoint folder is another
/// run's than the checkpoint that it goes on from. Older checkpoints that name no run may go on in their own folder.
void refuse_other_runs(const RunChoice& choice, const std::string& resume, const std::string& fresh_id);

}  // namespace troupe
