#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "actors/coordinator/membership_plan.hpp"

namespace troupe::simulator {

/// Bugs to plant, by name: what the simulator must find. Each is a `plan_membership` that is wrong in one thing.
inline const std::map<std::string, std::function<MembershipAnswer(const MembershipQuestion&)>>& planted_bugs() {
  static const std::map<std::string, std::function<MembershipAnswer(const MembershipQuestion&)>> bugs{
      // Goes on at the step that the slowest survivor stands at: what the others have committed is forgotten.
      {"forget-commit",
       [](const MembershipQuestion& question) {
         auto answer = plan_membership(question);
         for (const auto& survivor : question.survivors) {
           if (survivor.report && survivor.report->whole)
             answer.next.resume_step = std::min(answer.next.resume_step, survivor.report->steps_done);
         }
         return answer;
       }},
      // Takes a replacement for a survivor: nobody gives it the state.
      {"forget-newcomer",
       [](const MembershipQuestion& question) {
         auto answer = plan_membership(question);
         for (auto& member : answer.next.members) member.newcomer = false;
         return answer;
       }},
      // Who has voted, and did not hear how, is left without the votes.
      {"forget-votes",
       [](const MembershipQuestion& question) {
         auto answer = plan_membership(question);
         answer.next.votes.clear();
         return answer;
       }},
      // Waits for a replacement that does not come.
      {"never-shrink",
       [](const MembershipQuestion& question) {
         auto answer = plan_membership(question);
         const bool shrinks = answer.next.world_size() < question.current.world_size();
         if (answer.action == MembershipAnswer::Action::go && shrinks) answer.action = MembershipAnswer::Action::wait;
         return answer;
       }},
      // The generation's number is not counted on.
      {"same-generation",
       [](const MembershipQuestion& question) {
         auto answer = plan_membership(question);
         if (!question.current.members.empty()) answer.next.generation = question.current.generation;
         return answer;
       }},
  };
  return bugs;
}

}  // namespace troupe::simulator
