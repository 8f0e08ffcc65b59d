//! Every kind of record that rollouts hold, with the form in which a turn's text shows it.
//!
//! This is the one list. The names are those of the client's public source, from the first versions with
//! `session_meta` (0.36, September 2025) on: the enums `RolloutItem` (kinds of lines), `EventMsg`,
//! `ResponseItem` and `TurnItem` of `codex-rs/protocol/src/{protocol,models,items}.rs`, and
//! `codex-rs/rollout/src/policy.rs`, which says what is written to a file; for 0.171.0 the names that its
//! program itself holds. Names that later versions dropped (`background_event`, `undo_completed`,
//! `ghost_snapshot`, the deltas) stay here, for files stay too. A name that is not here is a kind that turnfs
//! does not know: it is shown as that, with its size and its beginning.

use std::borrow::Cow;

use serde_json::Value;

use super::calls::{
    self, arguments, command_execution, dynamic_tool_call, exec_command, image_generation, local_shell,
    mcp_tool_call, patch, view_image, web_search,
};
use super::notices::{
    agent_message, collaboration, compacted, compaction, deprecation, fields, ghost_snapshot, goal, guardian,
    hook, message, named, plan, plan_update, questions, review_begins, review_ends, sleep, sub_agent,
    turn_aborted, turn_complete,
};
use super::records::Response;
use crate::session::Item;

/// How a kind of record is shown.
#[derive(Clone, Copy)]
pub enum Form {
    /// It says nothing of its own: other records say the same, or it is progress, a setting or a figure.
    LeftOut,
    /// What the user, the model or the client says: [`super::items::Reader`] decides whose words they are.
    Spoken,
    /// A line that holds an event, a response item, or an event that holds an item.
    Events,
    Responses,
    Items,
    /// A call of the model's: the name that is shown, where the record has none, and what was asked.
    Call(&'static str, for<'r> fn(&'r Response<'_>) -> Cow<'r, str>),
    /// The result of a call.
    Result,
    /// What the client tells of a call: shown if the call is not among the response items.
    Once(fn(&Value) -> Once),
    /// Shown as these items, wherever it stands.
    Shown(fn(&Value) -> Vec<Item<'static>>),
}

/// What is told of a call that may stand elsewhere, too.
#[derive(Default)]
pub struct Once {
    pub items: Vec<Item<'static>>,
    /// What is the same in the response item of that call, besides its id.
    pub same: Vec<String>,
}

type Kinds = &'static [(&'static str, Form)];

use Form::{Call, Events, Items, LeftOut, Once as OnceOf, Responses, Result, Shown, Spoken};

/// `type` of a line.
pub const LINES: Kinds = &[
    ("response_item", Responses),
    ("event_msg", Events),
    ("compacted", Shown(compacted)),
    ("inter_agent_communication", Shown(agent_message)),
    ("realtime_item", Shown(fields)),
    // Settings and figures; `session_meta` is the file's head.
    ("turn_context", LeftOut),
    ("token_usage_record", LeftOut),
    ("world_state", LeftOut),
    ("session_meta", LeftOut),
    ("dynamic_tools_updated", LeftOut),
    ("inter_agent_communication_metadata", LeftOut),
    ("security_risk_score", LeftOut),
    ("id_allocation", LeftOut),
    // Of the first format.
    ("state", LeftOut),
];

/// `payload.type` of an `event_msg`; the frequent ones first.
pub const EVENTS: Kinds = &[
    ("token_count", LeftOut),
    ("agent_reasoning", Spoken),
    ("agent_message", Spoken),
    ("user_message", Spoken),
    ("item_completed", Items),
    ("exec_command_end", OnceOf(exec_command)),
    ("task_started", LeftOut),
    ("turn_started", LeftOut),
    ("task_complete", Shown(turn_complete)),
    ("turn_complete", Shown(turn_complete)),
    ("turn_aborted", Shown(turn_aborted)),
    ("agent_reasoning_raw_content", Spoken),
    ("thread_settings_applied", LeftOut),
    // A `compacted` line stands beside it.
    ("context_compacted", LeftOut),
    // What it took back is not shown.
    ("thread_rolled_back", LeftOut),
    // What happened besides.
    ("error", Shown(message)),
    ("warning", Shown(message)),
    ("guardian_warning", Shown(message)),
    ("stream_error", Shown(message)),
    ("background_event", Shown(message)),
    ("undo_started", Shown(message)),
    ("undo_completed", Shown(message)),
    ("deprecation_notice", Shown(deprecation)),
    ("thread_name_updated", Shown(named)),
    ("thread_goal_updated", Shown(goal)),
    ("thread_goal_cleared", Shown(goal)),
    ("entered_review_mode", Shown(review_begins)),
    ("exited_review_mode", Shown(review_ends)),
    ("hook_completed", Shown(hook)),
    ("guardian_assessment", Shown(guardian)),
    ("model_reroute", Shown(fields)),
    ("model_verification", Shown(fields)),
    ("auth_recovery_started", Shown(fields)),
    ("auth_recovery_completed", Shown(fields)),
    ("environment_connected", Shown(fields)),
    ("environment_disconnected", Shown(fields)),
    ("realtime_conversation_started", Shown(fields)),
    ("realtime_conversation_closed", Shown(fields)),
    ("elicitation_request", Shown(fields)),
    ("request_permissions", Shown(fields)),
    // Of calls.
    ("exec_command_begin", OnceOf(exec_command)),
    ("exec_approval_request", OnceOf(exec_command)),
    ("patch_apply_begin", OnceOf(patch)),
    ("patch_apply_end", OnceOf(patch)),
    ("apply_patch_approval_request", OnceOf(patch)),
    ("mcp_tool_call_begin", OnceOf(mcp_tool_call)),
    ("mcp_tool_call_end", OnceOf(mcp_tool_call)),
    ("dynamic_tool_call_request", OnceOf(dynamic_tool_call)),
    ("dynamic_tool_call_response", OnceOf(dynamic_tool_call)),
    ("web_search_begin", OnceOf(web_search)),
    ("web_search_end", OnceOf(web_search)),
    ("image_generation_begin", OnceOf(image_generation)),
    ("image_generation_end", OnceOf(image_generation)),
    ("view_image_tool_call", OnceOf(view_image)),
    ("request_user_input", OnceOf(questions)),
    ("plan_update", OnceOf(plan_update)),
    ("collab_agent_spawn_begin", OnceOf(collaboration)),
    ("collab_agent_spawn_end", OnceOf(collaboration)),
    ("collab_agent_interaction_begin", OnceOf(collaboration)),
    ("collab_agent_interaction_end", OnceOf(collaboration)),
    ("collab_waiting_begin", OnceOf(collaboration)),
    ("collab_waiting_end", OnceOf(collaboration)),
    ("collab_close_begin", OnceOf(collaboration)),
    ("collab_close_end", OnceOf(collaboration)),
    ("collab_resume_begin", OnceOf(collaboration)),
    ("collab_resume_end", OnceOf(collaboration)),
    ("sub_agent_activity", OnceOf(sub_agent)),
    // Progress of what another record tells in the end.
    ("item_started", LeftOut),
    ("hook_started", LeftOut),
    ("agent_message_delta", LeftOut),
    ("agent_message_content_delta", LeftOut),
    ("agent_reasoning_delta", LeftOut),
    ("agent_reasoning_raw_content_delta", LeftOut),
    ("agent_reasoning_section_break", LeftOut),
    ("reasoning_content_delta", LeftOut),
    ("reasoning_raw_content_delta", LeftOut),
    ("plan_delta", LeftOut),
    ("exec_command_output_delta", LeftOut),
    ("terminal_interaction", LeftOut),
    ("patch_apply_updated", LeftOut),
    ("turn_diff", LeftOut),
    ("raw_response_item", LeftOut),
    ("raw_response_completed", LeftOut),
    ("realtime_conversation_realtime", LeftOut),
    ("realtime_conversation_sdp", LeftOut),
    // The client's own state, and answers to what its user interface asked.
    ("session_configured", LeftOut),
    ("shutdown_complete", LeftOut),
    ("mcp_startup_update", LeftOut),
    ("mcp_startup_complete", LeftOut),
    ("skills_update_available", LeftOut),
    ("thread_queue_changed", LeftOut),
    ("turn_moderation_metadata", LeftOut),
    ("safety_buffering", LeftOut),
    ("elicitation_abandoned", LeftOut),
    ("get_history_entry_response", LeftOut),
    ("conversation_path", LeftOut),
    ("conversation_history", LeftOut),
    ("mcp_list_tools_response", LeftOut),
    ("list_custom_prompts_response", LeftOut),
    ("list_skills_response", LeftOut),
    ("list_remote_skills_response", LeftOut),
    ("remote_skill_downloaded", LeftOut),
    ("realtime_conversation_list_voices_response", LeftOut),
];

/// `payload.item.type` of an `item_completed`.
pub const ITEMS: Kinds = &[
    ("UserMessage", Spoken),
    ("AgentMessage", Spoken),
    ("Reasoning", Spoken),
    ("Plan", OnceOf(plan)),
    ("CommandExecution", OnceOf(command_execution)),
    ("FileChange", OnceOf(patch)),
    ("McpToolCall", OnceOf(mcp_tool_call)),
    ("DynamicToolCall", OnceOf(dynamic_tool_call)),
    ("CollabAgentToolCall", OnceOf(collaboration)),
    ("SubAgentActivity", OnceOf(sub_agent)),
    ("WebSearch", OnceOf(web_search)),
    ("ImageView", OnceOf(view_image)),
    ("ImageGeneration", OnceOf(image_generation)),
    ("Sleep", Shown(sleep)),
    ("EnteredReviewMode", Shown(review_begins)),
    ("ExitedReviewMode", Shown(review_ends)),
    // Said by a `compacted` line, and by response items.
    ("ContextCompaction", LeftOut),
    ("FunctionCallOutput", LeftOut),
    ("HookPrompt", LeftOut),
];

/// `payload.type` of a `response_item`; the frequent ones first.
pub const RESPONSES: Kinds = &[
    ("function_call", Call("", arguments)),
    ("function_call_output", Result),
    ("reasoning", Spoken),
    ("message", Spoken),
    ("custom_tool_call", Call("", arguments)),
    ("custom_tool_call_output", Result),
    ("local_shell_call", Call("shell", local_shell)),
    ("local_shell_call_output", Result),
    ("web_search_call", Call("web_search", calls::searched)),
    ("tool_search_call", Call("tool_search", arguments)),
    ("tool_search_output", Result),
    ("mcp_tool_call_output", Result),
    ("image_generation_call", Shown(image)),
    ("ghost_snapshot", Shown(ghost_snapshot)),
    ("agent_message", Shown(agent_message)),
    ("compaction", Shown(compaction)),
    ("compaction_summary", Shown(compaction)),
    ("context_compaction", Shown(compaction)),
    // Settings of the model's, as `turn_context` is.
    ("additional_tools", LeftOut),
    ("configuration_update", LeftOut),
    ("compaction_trigger", LeftOut),
];

fn image(value: &Value) -> Vec<Item<'static>> {
    image_generation(value).items
}

/// The form of a kind; `None` if it is not known.
pub fn of(kinds: Kinds, kind: &str) -> Option<Form> {
    kinds.iter().find(|(name, _)| *name == kind).map(|(_, form)| *form)
}

#[cfg(test)]
mod tests;
