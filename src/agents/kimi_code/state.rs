//! state.json: what a session is called, which project it is of, and where it comes from.
//! Facts: `docs/stores/kimi-code.md`, "1. Layout".

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::values::{number, string};
use crate::session::{AgentKind, Damage, DamageClass, Place};
use crate::transcript::metrics::{ReadKind, count_bytes};
use crate::transcript::{StoreDir, read_small};

/// File name of a session's state.
pub(super) const STATE: &str = "state.json";
/// Longest state.json that is read, bytes. Real ones have kilobytes.
pub(super) const LONGEST: u64 = 4 << 20;

/// What a state.json says.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub project: String,
    pub created: Option<Timestamp>,
    pub archived: bool,
    /// The title, and whether the user gave it.
    pub title: Option<(String, bool)>,
    pub forked_from: Option<String>,
    /// The session of Kimi CLI that this one was made of.
    pub migrated_from: Option<String>,
}

/// What a session's state.json says; the damage says why nothing.
///
/// # Errors
/// It is not there, cannot be read, or contradicts itself.
pub(super) fn read(dir: &StoreDir, file: &Path, name: &str) -> Result<State, Damage> {
    let at = || file.to_string_lossy().into_owned();
    let broken = |what: &str| {
        let advice = "kimi-code does not find this session; its turns are shown, and nothing of it is changed until the file is repaired";
        Damage::of_whole(at(), DamageClass::Sidecar, format!("{what}; {advice}"))
    };
    let bytes = match read_small(dir, Path::new(STATE), LONGEST) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(broken("it is not there")),
        Err(refusal) => return Err(Damage::unread(at(), &refusal)),
    };
    count_bytes(AgentKind::KimiCode, ReadKind::Sidecar, bytes.len() as u64);
    parse(&bytes, name).map_err(|why| broken(&why))
}

/// What the bytes of a state.json say of the session whose directory has this name.
///
/// # Errors
/// Why they say nothing, in words.
pub(super) fn parse(bytes: &[u8], name: &str) -> Result<State, String> {
    #[derive(Deserialize)]
    struct Keys<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        #[serde(borrow)]
        cwd: Option<&'a RawValue>,
        #[serde(borrow, rename = "workDir")]
        work_dir: Option<&'a RawValue>,
        #[serde(borrow, rename = "createdAt")]
        created: Option<&'a RawValue>,
        #[serde(borrow)]
        archived: Option<&'a RawValue>,
        #[serde(borrow)]
        title: Option<&'a RawValue>,
        #[serde(borrow, rename = "titleKind")]
        title_kind: Option<&'a RawValue>,
        #[serde(borrow, rename = "isCustomTitle")]
        is_custom: Option<&'a RawValue>,
        #[serde(borrow, rename = "forkedFrom")]
        forked_from: Option<&'a RawValue>,
        #[serde(borrow)]
        custom: Option<&'a RawValue>,
    }
    let text = simdutf8::basic::from_utf8(bytes).map_err(|_| "not valid UTF-8")?;
    let keys: Keys<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(id) = keys.id.and_then(string).filter(|id| id != name) {
        return Err(format!("it is the state of another session ({id})"));
    }
    let project = match (keys.cwd.and_then(string), keys.work_dir.and_then(string)) {
        (Some(cwd), Some(work_dir)) if Place::recorded(&cwd) != Place::recorded(&work_dir) => {
            return Err(format!("it names two projects ({cwd:?} and {work_dir:?})"));
        }
        (Some(project), _) | (None, Some(project)) => project,
        (None, None) => return Err("it names no project".into()),
    };
    let is_true = |value: Option<&RawValue>| value.is_some_and(|value| value.get() == "true");
    let given = is_true(keys.is_custom) || keys.title_kind.and_then(string).as_deref() == Some("custom");
    let title = keys.title.and_then(string).filter(|title| !title.trim().is_empty());
    Ok(State {
        project,
        created: keys.created.and_then(number).and_then(|at| Timestamp::from_millisecond(at).ok()),
        archived: is_true(keys.archived),
        title: title.map(|title| (title, given)),
        forked_from: keys.forked_from.and_then(string),
        migrated_from: keys.custom.and_then(migrated_from),
    })
}

/// Facts: "5. Migration from kimi-cli".
fn migrated_from(custom: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Custom<'a> {
        #[serde(borrow)]
        imported_from_kimi_cli: Option<&'a RawValue>,
        #[serde(borrow)]
        kimi_cli_source_path: Option<&'a RawValue>,
        #[serde(borrow)]
        kimi_cli_session_id: Option<&'a RawValue>,
    }
    let custom: Custom<'_> = serde_json::from_str(custom.get()).ok()?;
    custom.imported_from_kimi_cli.filter(|value| value.get() == "true")?;
    let source = custom.kimi_cli_source_path.or(custom.kimi_cli_session_id).and_then(string);
    Some(source.unwrap_or_else(|| "kimi-cli".into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_of_the_project_that_its_state_names_once() {
        for (json, project) in [
            (r#"{"cwd":"/a"}"#, Some("/a")),
            (r#"{"workDir":"/a"}"#, Some("/a")),
            (r#"{"cwd":"/a","workDir":"/a/"}"#, Some("/a")),
            (r#"{"cwd":"/a","workDir":"/b"}"#, None),
            (r#"{"id":"other","cwd":"/a"}"#, None),
            ("{}", None),
            ("{ a", None),
        ] {
            let state = parse(json.as_bytes(), "session_1");
            assert_eq!(state.ok().map(|state| state.project).as_deref(), project, "{json}");
        }
    }
}
