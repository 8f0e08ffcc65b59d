//! Every kind of record that rollouts hold, with the form in which a turn's text shows it.
//!
//! This is the one list. The names are those of the client's public source, from the first versions with
//! `session_meta` (0.36, September 2025) on: the enums `RolloutItem` (kinds of lines), `EventMsg`,
//! `ResponseItem` and `TurnItem` of `codex-rs/protocol/src/{protocol,models,items}.rs`, and
//! `codex-rs/rollout/src/policy.rs`, which says what is written to a file; for 0.171.0 the names that its
//! program itself holds. Names that later versions dropped (`background_event`, `undo_completed`,
//! `ghost_snapshot`, the deltas) stay here, for files stay too. A name that is not here is a kind that turnfs
//! does not know: it is shown as that, with its size and its beginning.

use serde_json::Value;

use super::calls::{
    dynamic_tool_call, exec_command, image_generation, mcp_tool_call, patch, view_image, web_search,
};
use super::notices::{
    agent_message, collaboration, compacted, compaction, deprecation, fields, ghost_snapshot, goal, guardian,
    hook, message, named, plan, plan_update, questions, review_begins, review_ends, sleep, sub_agent,
    turn_aborted, turn_complete,
};
use super::shown::Once;
use super::tools;
use crate::session::{Asked, Item};

/// How a kind of record is shown.
#[derive(Clone, Copy)]
pub enum Form {
    /// It says nothing of its own: other records say the same, or it is progress, a setting or a figure.
    LeftOut,
    /// The reader (`reader.rs`) itself looks into it: words, or records that hold others.
    Read,
    /// A call of the model's: the name that is shown, where the record has none, and what the arguments of a tool of
    /// this name ask for.
    Call(&'static str, for<'r> fn(&str, &'r str) -> Asked<'r>),
    /// The result of a call.
    Result,
    /// What the client tells of a call: shown if the call is not among the response items.
    Once(fn(&Value) -> Once),
    /// Shown as these items, wherever it stands.
    Shown(fn(&Value) -> Vec<Item<'static>>),
}

/// Forms, each with the names of its kinds.
pub type Kinds = &'static [(Form, &'static str)];

use Form::{Call, LeftOut, Once as OnceOf, Read, Result, Shown};

/// `type` of a line.
pub const LINES: Kinds = &[
    (Read, "response_item event_msg"),
    (Shown(compacted), "compacted"),
    (Shown(agent_message), "inter_agent_communication"),
    (Shown(fields), "realtime_item"),
    // Settings and figures; `session_meta` is the file's head, `state` is of the first format.
    (
        LeftOut,
        "turn_context token_usage_record world_state session_meta dynamic_tools_updated \
         inter_agent_communication_metadata security_risk_score id_allocation state",
    ),
];

/// `payload.type` of an `event_msg`; the frequent ones first.
pub const EVENTS: Kinds = &[
    // A `compacted` line stands beside `context_compacted`; what a rollback took back is not shown.
    (
        LeftOut,
        "token_count task_started turn_started thread_settings_applied context_compacted thread_rolled_back",
    ),
    (Read, "agent_reasoning agent_message user_message item_completed agent_reasoning_raw_content"),
    (Shown(turn_complete), "task_complete turn_complete"),
    (Shown(turn_aborted), "turn_aborted"),
    // What happened besides.
    (
        Shown(message),
        "error warning guardian_warning stream_error background_event undo_started undo_completed",
    ),
    (Shown(deprecation), "deprecation_notice"),
    (Shown(named), "thread_name_updated"),
    (Shown(goal), "thread_goal_updated thread_goal_cleared"),
    (Shown(review_begins), "entered_review_mode"),
    (Shown(review_ends), "exited_review_mode"),
    (Shown(hook), "hook_completed"),
    (Shown(guardian), "guardian_assessment"),
    (
        Shown(fields),
        "model_reroute model_verification auth_recovery_started auth_recovery_completed environment_connected \
         environment_disconnected realtime_conversation_started realtime_conversation_closed \
         elicitation_request request_permissions",
    ),
    // Of calls.
    (OnceOf(exec_command), "exec_command_end exec_command_begin exec_approval_request"),
    (OnceOf(patch), "patch_apply_begin patch_apply_end apply_patch_approval_request"),
    (OnceOf(mcp_tool_call), "mcp_tool_call_begin mcp_tool_call_end"),
    (OnceOf(dynamic_tool_call), "dynamic_tool_call_request dynamic_tool_call_response"),
    (OnceOf(web_search), "web_search_begin web_search_end"),
    (OnceOf(image_generation), "image_generation_begin image_generation_end"),
    (OnceOf(view_image), "view_image_tool_call"),
    (OnceOf(questions), "request_user_input"),
    (OnceOf(plan_update), "plan_update"),
    (
        OnceOf(collaboration),
        "collab_agent_spawn_begin collab_agent_spawn_end collab_agent_interaction_begin \
         collab_agent_interaction_end collab_waiting_begin collab_waiting_end collab_close_begin \
         collab_close_end collab_resume_begin collab_resume_end",
    ),
    (OnceOf(sub_agent), "sub_agent_activity"),
    // Progress of what another record tells in the end.
    (
        LeftOut,
        "item_started hook_started agent_message_delta agent_message_content_delta agent_reasoning_delta \
         agent_reasoning_raw_content_delta agent_reasoning_section_break reasoning_content_delta \
         reasoning_raw_content_delta plan_delta exec_command_output_delta terminal_interaction \
         patch_apply_updated turn_diff raw_response_item raw_response_completed \
         realtime_conversation_realtime realtime_conversation_sdp",
    ),
    // The client's own state, and answers to what its user interface asked.
    (
        LeftOut,
        "session_configured shutdown_complete mcp_startup_update mcp_startup_complete \
         skills_update_available thread_queue_changed turn_moderation_metadata safety_buffering \
         elicitation_abandoned get_history_entry_response conversation_path conversation_history \
         mcp_list_tools_response list_custom_prompts_response list_skills_response \
         list_remote_skills_response remote_skill_downloaded realtime_conversation_list_voices_response",
    ),
];

/// `payload.item.type` of an `item_completed`.
pub const ITEMS: Kinds = &[
    (Read, "UserMessage AgentMessage Reasoning"),
    (OnceOf(plan), "Plan"),
    (OnceOf(exec_command), "CommandExecution"),
    (OnceOf(patch), "FileChange"),
    (OnceOf(mcp_tool_call), "McpToolCall"),
    (OnceOf(dynamic_tool_call), "DynamicToolCall"),
    (OnceOf(collaboration), "CollabAgentToolCall"),
    (OnceOf(sub_agent), "SubAgentActivity"),
    (OnceOf(web_search), "WebSearch"),
    (OnceOf(view_image), "ImageView"),
    (OnceOf(image_generation), "ImageGeneration"),
    (Shown(sleep), "Sleep"),
    (Shown(review_begins), "EnteredReviewMode"),
    (Shown(review_ends), "ExitedReviewMode"),
    // Said by a `compacted` line, and by response items.
    (LeftOut, "ContextCompaction FunctionCallOutput HookPrompt"),
];

/// `payload.type` of a `response_item`; the frequent ones first.
pub const RESPONSES: Kinds = &[
    (Call("", tools::function), "function_call custom_tool_call"),
    (
        Result,
        "function_call_output custom_tool_call_output local_shell_call_output tool_search_output \
         mcp_tool_call_output",
    ),
    (Read, "reasoning message"),
    (Call("shell", tools::local_shell), "local_shell_call"),
    (Call("web_search", tools::web_search), "web_search_call"),
    (Call("tool_search", tools::tool_search), "tool_search_call"),
    (Shown(image), "image_generation_call"),
    (Shown(ghost_snapshot), "ghost_snapshot"),
    (Shown(agent_message), "agent_message"),
    (Shown(compaction), "compaction compaction_summary context_compaction"),
    // Settings of the model's, as `turn_context` is.
    (LeftOut, "additional_tools configuration_update compaction_trigger"),
];

fn image(value: &Value) -> Vec<Item<'static>> {
    image_generation(value).items
}

/// The form of a kind; `None` if it is not known.
pub fn of(kinds: Kinds, kind: &str) -> Option<Form> {
    kinds.iter().find(|(_, names)| names.split(' ').any(|name| name == kind)).map(|(form, _)| *form)
}

#[cfg(test)]
mod tests;
