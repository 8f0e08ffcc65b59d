//! R21, R23: a transcript that is replaced under a reader, and transcripts that are larger than memory.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};

use turnfs::session::AgentKind;

use crate::sample::{Sample, replaced, victim, write_old};
use crate::support::run;

#[test]
fn r21_a_reader_keeps_one_version_when_the_transcript_is_replaced() {
    for sample in Sample::all() {
        let long = "long ".repeat(60_000);
        sample.change(|lines| {
            lines[victim(&sample)] = replaced(&lines[victim(&sample)], "three", &format!("three {long}"))
        });
        let mount = sample.store.mount::<&str>(&[]);
        let dir = mount.session(&sample.store, Some(&sample.id));
        let before = fs::read(dir.join("turns/002")).unwrap();
        let mut reader = fs::File::open(dir.join("turns/002")).unwrap();
        let mut text = vec![0; 4096];
        reader.read_exact(&mut text).unwrap();
        let shorter = [sample.lines()[..victim(&sample)].concat()].concat();
        let beside = sample.transcript.with_extension("new");
        fs::write(&beside, shorter).unwrap();
        fs::rename(&beside, &sample.transcript).unwrap();
        let mut rest = Vec::new();
        match reader.read_to_end(&mut rest) {
            Ok(_) => {
                text.extend(rest);
                let (got, whole) = (text.len(), before.len());
                assert!(text == before, "{}: a mixture of two versions, {got} of {whole} bytes", sample.name);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{}", sample.name),
        }
        let now = fs::read_to_string(dir.join("turns/002")).unwrap();
        assert!(!now.contains("long long"), "{}: the old text after the replacement", sample.name);
    }
}

#[test]
fn r23_a_huge_transcript_is_listed_and_checked_in_bounded_memory() {
    for sample in Sample::all() {
        let line = match sample.agent {
            AgentKind::KimiCli => 1,
            AgentKind::Codex => 7,
            AgentKind::OpenMax => 1,
        };
        let word = sample.expected["turns"][0]["prompt"].as_str().unwrap();
        let blob = format!("{word} data:image/png;base64,{}", "QUJD".repeat(75_000));
        sample.change(|lines| lines[line] = replaced(&lines[line], word, &blob));
        if sample.agent == AgentKind::KimiCli {
            let context = sample.transcript.with_file_name("context.jsonl");
            let text = fs::read_to_string(&context).unwrap();
            write_old(&context, text.replacen(&format!("\"{word}\""), &format!("\"{blob}\""), 1).as_bytes());
        }
        let mut file = fs::File::options().write(true).open(&sample.transcript).unwrap();
        // Nothing, more of it than the memory that the commands get, and a record behind it.
        file.seek(SeekFrom::End(256 << 20)).unwrap();
        file.write_all(b"\n").unwrap();
        file.write_all(sample.lines_head().last().unwrap()).unwrap();
        let bounded = |command: &str| {
            let script = format!("ulimit -v 180000; exec turnfs {command}");
            run(sample.store.shell("sh", &script))
        };
        let checked = bounded("check --all --json");
        assert_eq!(checked.code, 1, "{}: {}", sample.name, checked.stderr);
        assert!(checked.stdout.contains("\"nul-run\""), "{}: {}", sample.name, checked.stdout);
        let listed = bounded("ls --all").ok();
        assert!(listed.contains("damaged"), "{}: {listed}", sample.name);
        let id = bounded(&format!("rescue {}", sample.id)).ok();
        assert_eq!(sample.shown(id.trim())["turns"].as_array().unwrap().len(), 4, "{}", sample.name);
    }
}

impl Sample {
    /// The first lines, without reading what lies behind them.
    fn lines_head(&self) -> Vec<Vec<u8>> {
        let mut head = vec![0; 4096];
        let got = fs::File::open(&self.transcript).unwrap().read(&mut head).unwrap();
        head.truncate(got);
        let lines = head.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        lines.filter(|line| line.ends_with(b"\n")).collect()
    }
}
