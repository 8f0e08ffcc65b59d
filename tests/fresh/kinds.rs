//! The kinds of change that an outside process makes: each is made, waited for through the mount, and taken
//! back. What the kernel remembers of it was looked at before, so it must be made to forget.

use std::fs::{self, File};
use std::time::Duration;

use super::store::{Case, soon};
use crate::support::copy_tree;

/// Makes a change once and gives the time until it was seen.
pub type Once = fn(&Case, u64) -> Duration;

pub const ALL: [(&str, Once); 7] = [
    ("append", append),
    ("truncate", truncate),
    ("replace", replace),
    ("delete", delete),
    ("new session", new_session),
    ("new project", new_project),
    ("title", title),
];

fn append(case: &Case, round: u64) -> Duration {
    let (new, len) = (case.dir.join("turns/004"), fs::metadata(case.wire()).unwrap().len());
    assert!(!new.exists());
    case.append_turn(&format!("round {round}"));
    let took = soon("an appended turn", || new.exists());
    File::options().write(true).open(case.wire()).unwrap().set_len(len).unwrap();
    soon("the turn's end", || !new.exists());
    took
}

fn truncate(case: &Case, round: u64) -> Duration {
    let (new, len) = (case.dir.join("turns/004"), fs::metadata(case.wire()).unwrap().len());
    case.append_turn(&format!("round {round}"));
    soon("an appended turn", || new.exists());
    File::options().write(true).open(case.wire()).unwrap().set_len(len).unwrap();
    soon("a truncation", || !new.exists())
}

fn replace(case: &Case, round: u64) -> Duration {
    let original = fs::read_to_string(case.wire()).unwrap();
    let turn = case.dir.join("turns/002");
    let size = || fs::metadata(&turn).unwrap().len();
    let before = size();
    let longer = original.replace("turn three", &format!("turn three and round {round}"));
    let beside = case.wire().with_extension("tmp");
    fs::write(&beside, longer).unwrap();
    fs::rename(&beside, case.wire()).unwrap();
    let took = soon("a replacement", || size() > before);
    fs::write(case.wire(), &original).unwrap();
    soon("the old bytes", || size() == before);
    took
}

fn copied(case: &Case, round: u64) -> (std::path::PathBuf, std::path::PathBuf) {
    let id = format!("11111111-2222-3333-4444-{round:012}");
    let copy = case.session().with_file_name(&id);
    (copy, case.dir.parent().unwrap().join(id))
}

fn delete(case: &Case, round: u64) -> Duration {
    let (copy, alias) = copied(case, round);
    copy_tree(&case.session(), &copy);
    soon("a new session", || alias.join("turns/000").exists());
    let directory = alias.canonicalize().unwrap();
    fs::remove_dir_all(&copy).unwrap();
    soon("a deleted session", || !directory.exists()).max(soon("a deleted session's id", || !alias.exists()))
}

fn new_session(case: &Case, round: u64) -> Duration {
    let (copy, alias) = copied(case, round);
    let project = case.dir.parent().unwrap();
    let before = fs::read_dir(project).unwrap().count();
    assert!(!alias.exists());
    copy_tree(&case.session(), &copy);
    let listed = || fs::read_dir(project).unwrap().count() > before && alias.join("turns/000").exists();
    let took = soon("a new session", listed);
    fs::remove_dir_all(&copy).unwrap();
    soon("a deleted session", || !alias.exists());
    took
}

fn new_project(case: &Case, round: u64) -> Duration {
    let place = case.mount.path.join("home/dev/new").join(round.to_string());
    assert!(!place.exists());
    let index = fs::read_to_string(case.root.join("kimi.json")).unwrap();
    let path = format!("/home/dev/new/{round}");
    let digest = <md5::Md5 as md5::Digest>::digest(path.as_bytes());
    let group: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let group = case.root.join("sessions").join(group);
    let entry = format!("{{\"path\": \"{path}\", \"kaos\": \"local\", \"last_session_id\": null}}, ");
    let list = "\"work_dirs\": [";
    let with = index.replacen(list, &format!("{list}{entry}"), 1);
    assert_ne!(with, index);
    copy_tree(&case.session(), &group.join("11111111-2222-3333-4444-555555555555"));
    fs::write(case.root.join("kimi.json"), with).unwrap();
    let took = soon("a new project", || place.join("latest/turns/000").exists());
    fs::write(case.root.join("kimi.json"), index).unwrap();
    fs::remove_dir_all(group).unwrap();
    soon("a project that is gone", || !place.exists());
    took
}

fn title(case: &Case, round: u64) -> Duration {
    let title = format!("title {round}");
    fs::write(case.session().join("state.json"), format!("{{\"custom_title\": \"{title}\"}}")).unwrap();
    soon("a title", || fs::read_to_string(case.dir.join("meta.json")).unwrap().contains(&title))
}
