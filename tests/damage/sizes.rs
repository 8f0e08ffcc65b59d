//! R21, R23: a transcript that is replaced under a reader, and transcripts that are larger than memory.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use turnfs::session::AgentKind;

use crate::sample::{PLAIN, Sample, replaced, victim, write_old};
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
            AgentKind::KimiCode => 5,
            AgentKind::Codex => 7,
            AgentKind::OpenMax => 1,
            AgentKind::ClaudeCode => 2,
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

/// Runs `turnfs` with arguments; what it printed, and the most memory that it had, MiB.
#[allow(clippy::zombie_processes, reason = "wait4 waits for it: only that tells its memory")]
fn peak(sample: &Sample, args: &[&str]) -> (String, i64) {
    let child = sample.store.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id() as i32;
    let (mut out, mut err) = (child.stdout.unwrap(), child.stderr.unwrap());
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    err.read_to_string(&mut said).unwrap();
    // SAFETY: all zeros are a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both are valid for the call, and the child is ours and not waited for elsewhere.
    assert_eq!(unsafe { libc::wait4(pid, &mut status, 0, &mut usage) }, pid);
    (said, usage.ru_maxrss / 1024)
}

/// A line of `mib` MiB: `before`, as many `piece`s as fit, `after`. The pieces end with a comma.
fn long_line(before: &str, piece: &str, after: &str, mib: usize) -> Vec<u8> {
    let pieces = piece.repeat((mib << 20) / piece.len());
    format!("{before}{}{after}\n", pieces.trim_end_matches(',')).into_bytes()
}

#[test]
fn a_line_of_very_many_small_things_takes_a_small_multiple_of_its_length() {
    let wire = |kind: &str, payload: &str| {
        format!(r#"{{"timestamp": 1, "message": {{"type": "{kind}", "payload": {{{payload}["#)
    };
    let codex =
        r#"{"timestamp":"2026-11-30T13:43:11.000Z","ordinal":9,"type":"response_item","payload":{"type":"#;
    let cases = [
        (
            "a-plain",
            "context.jsonl",
            r#"{"role":"assistant","content":"x","tool_calls":["#.into(),
            r#"{"id":"a"},"#,
            "]}",
        ),
        (
            "a-plain",
            "context.jsonl",
            r#"{"role":"assistant","content":"x","tool_calls":["#.into(),
            r#"{"id":"a","function":{"name":"b"}},"#,
            "]}",
        ),
        ("a-plain", "context.jsonl", r#"{"role":"user","content":["#.into(), "{},", "]}"),
        ("a-plain", "context.jsonl", r#"{"role":"user","x":["#.into(), "NaN,", r#"],"content":""}"#),
        (
            "a-plain",
            "wire.jsonl",
            wire("ToolResult", r#""tool_call_id": "a", "return_value": {"is_error": false, "output": "#),
            r#""","#,
            "]}}}}",
        ),
        (
            "a-plain",
            "wire.jsonl",
            wire("ContentPart", r#""x": "#),
            "{},",
            r#"], "type": "text", "text": ""}}}"#,
        ),
        ("a_plain4", "", format!(r#"{codex}"message","role":"user","content":["#), "{},", "]}}"),
        ("a_plain4", "", format!(r#"{codex}"reasoning","summary":["#), "{},", "]}}"),
        (
            "a_plain",
            "",
            r#"{"role":"assistant","tool_calls":["#.into(),
            r#"{"id":"\n","function":{"name":"\n","arguments":"\n"}},"#,
            "]}",
        ),
    ];
    for (name, file, before, piece, after) in cases {
        let (agent, _) = *PLAIN.iter().find(|(_, plain)| *plain == name).unwrap();
        let sample = Sample::of(agent, name);
        let path =
            if file.is_empty() { sample.transcript.clone() } else { sample.transcript.with_file_name(file) };
        let mut lines = fs::read(&path).unwrap();
        lines.extend(long_line(&before, piece, after, 8));
        write_old(&path, &lines);
        let (said, most) = peak(&sample, &["check", "--all"]);
        assert!(said.contains("1 session read"), "{name} {before}: {said}");
        // The line, the buffer that it is read into (up to twice that), what is made of it, and the program.
        assert!(most < 90, "{name} {before}{piece}: {most} MiB");
    }
}

#[test]
fn a_line_above_the_limit_is_damage_and_is_never_held() {
    for sample in Sample::all() {
        let lines = sample.lines();
        let before: usize = lines[..lines.len() - 1].iter().map(Vec::len).sum();
        let file = fs::File::options().write(true).open(&sample.transcript).unwrap();
        file.set_len(before as u64).unwrap();
        file.write_all_at(b"{\"a\":\"", before as u64).unwrap();
        file.write_all_at(b"\n", before as u64 + (500 << 20)).unwrap();
        file.write_all_at(lines.last().unwrap(), before as u64 + (500 << 20) + 1).unwrap();
        for command in [&["check", "--all", "--json"][..], &["ls", "--all"], &["show", &sample.id]] {
            let (said, most) = peak(&sample, command);
            assert!(said.contains("damaged") || said.contains("too-long"), "{}: {said}", sample.name);
            assert!(most < 200, "{}: {command:?} took {most} MiB", sample.name);
        }
        let id = sample.store.run(&["rescue", &sample.id]).ok();
        assert!(!sample.shown(id.trim())["turns"].as_array().unwrap().is_empty(), "{}", sample.name);
        let mount = sample.store.mount::<&str>(&[]);
        let dir = mount.session(&sample.store, Some(&sample.id));
        let status = fs::read_to_string(dir.join("status")).unwrap();
        assert!(status.contains("too-long"), "{status}");
        let memory = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
        let most = memory.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let most: u64 = most.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(most < 200 << 10, "{}: the mount took {most} kB", sample.name);
    }
}

#[test]
fn a_small_file_that_unpacks_to_very_much_is_listed_and_not_read() {
    for (times, state) in [(600, "unsupported"), (40, "damaged")] {
        let sample = Sample::of(AgentKind::Codex, "a_plain4_legacy");
        let lines = sample.lines();
        let packed = sample.transcript.with_extension("jsonl.zst");
        let mut packer = zstd::Encoder::new(fs::File::create(&packed).unwrap(), 1).unwrap();
        packer.write_all(&lines[0]).unwrap();
        let piece = vec![b'a'; 1 << 20];
        (0..times).for_each(|_| packer.write_all(&piece).unwrap());
        packer.write_all(&[b"\n", &lines[1..].concat()[..]].concat()).unwrap();
        packer.finish().unwrap();
        fs::remove_file(&sample.transcript).unwrap();
        for command in [&["check", "--all"][..], &["ls", "--all"], &["show", &sample.id]] {
            let (said, most) = peak(&sample, command);
            assert!(said.contains(&sample.id[..8]) || said.contains(state), "{command:?}: {said}");
            assert!(most < 200, "{command:?} took {most} MiB for {} bytes", packed.metadata().unwrap().len());
        }
        let (said, _) = peak(&sample, &["show", &sample.id]);
        assert!(said.contains(&format!("state: {state}")), "{said}");
        assert!(times < 600 || said.contains("1000 times its size"), "{said}");
        let mount = sample.store.mount::<&str>(&[]);
        let status = mount.session(&sample.store, Some(&sample.id)).join("status");
        assert!(fs::read_to_string(status).unwrap().contains(state));
    }
}

#[test]
fn a_damaged_line_full_of_records_that_begin_delays_nobody() {
    let sample = Sample::of(AgentKind::KimiCli, "a-plain");
    let context = sample.transcript.with_file_name("context.jsonl");
    let mut lines = fs::read(&context).unwrap();
    lines.extend(format!("{{\"role\":\"user\",\"content\":\"{}\n", "{\"a\":".repeat(100_000)).bytes());
    write_old(&context, &lines);
    let begun = Instant::now();
    assert!(sample.store.run(&["ls", "--all"]).ok().contains("damaged"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
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
