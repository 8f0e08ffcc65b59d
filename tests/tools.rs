//! Standard tools read turns as they read any file, and agree with each other byte for byte.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use support::TestStore;

/// Runs a script in the directory of the session of `sample`; `$OUT` is an empty directory.
fn in_session(sample: &str, script: &str) -> support::Ran {
    let store = TestStore::from_sample(sample);
    let mount = store.mount::<&str>(&[]);
    let dir = mount.session(&store, None);
    let out = store.home.join("out");
    std::fs::create_dir(&out).unwrap();
    let script = format!("set -e; OUT='{}'; cd '{}'; {script}", out.display(), dir.display());
    support::run(store.shell("bash", &script))
}

#[test]
fn all_tools_see_the_same_bytes() {
    let script = r#"
        for n in turns/*; do cat "$n" > "$OUT/$(basename "$n")"; done
        for n in turns/*; do
            want=$OUT/$(basename "$n")
            test "$(stat -c %s "$n")" = "$(stat -c %s "$want")"
            test "$(wc -c < "$n")" = "$(wc -c < "$want")"
            test "$(wc -l < "$n")" = "$(wc -l < "$want")"
            cmp "$n" "$want"
            diff "$n" "$want"
            cmp <(less "$n" </dev/null) "$want"
            cmp <(head -c 40 "$n") <(head -c 40 "$want")
            cmp <(tail -n 3 "$n") <(tail -n 3 "$want")
            cmp <(tail -c 25 "$n") <(tail -c 25 "$want")
            cmp <(tac "$n") <(tac "$want")
            cmp <(dd if="$n" bs=7 status=none) "$want"
            cmp <(dd if="$n" bs=1 skip=9 count=30 status=none) <(dd if="$want" bs=1 skip=9 count=30 status=none)
            python3 - "$n" "$want" <<'PY'
import mmap, sys
with open(sys.argv[1], "rb") as f, open(sys.argv[2], "rb") as w:
    assert mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:] == w.read()
PY
        done
        mkdir "$OUT/cp" "$OUT/tar" "$OUT/rsync"
        cp -r turns "$OUT/cp/"; diff -r turns "$OUT/cp/turns"
        tar cf - turns | tar xf - -C "$OUT/tar"; diff -r turns "$OUT/tar/turns"
        rsync -a turns "$OUT/rsync/"; diff -r turns "$OUT/rsync/turns"
        rsync -a --checksum --itemize-changes turns "$OUT/rsync/" > "$OUT/changes"; test ! -s "$OUT/changes"
        test "$(find turns -type f | wc -l)" = "$(ls turns | wc -l)"
        test "$(find turns -type f -size +0 | wc -l)" = "$(ls turns | wc -l)"
        test "$(du -b --apparent-size turns/000 | cut -f1)" = "$(stat -c %s turns/000)"
        test "$(grep -rc . turns | sort)" = "$(cd "$OUT/cp" && grep -rc . turns | sort)"
        test "$(rg -c . turns | sort)" = "$(cd "$OUT/cp" && rg -c . turns | sort)"
        test "$(grep -rl 'turn' turns | sort)" = "$(rg -l 'turn' turns | sort)"
        cmp turns/0 turns/000
        cmp turns/0003 turns/003
    "#;
    for sample in ["b-tools", "e-slash", "c-compact"] {
        let ran = in_session(sample, script);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{sample}: {}", ran.stdout);
    }
}

#[test]
fn whole_sessions_can_be_copied_with_all_views() {
    let store = TestStore::from_samples(&["b-tools", "j-sub", "h-bg"]);
    let mount = store.mount(&["--show-all"]);
    let out = store.home.join("copy");
    let script = format!(
        "set -e; cp -r '{0}' '{1}'; diff -r --no-dereference '{0}/home' '{1}/home'; \
         tar cf '{1}.tar' -C '{0}' . 2>&1; find '{1}' -name '*.jsonl' | wc -l",
        mount.path.display(),
        out.display()
    );
    let ran = store.sh(&script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    assert!(ran.stdout.trim().parse::<u32>().unwrap() > 6, "{}", ran.stdout);
}

#[test]
fn listings_are_in_order_and_times_make_sense() {
    let script = r#"
        test "$(ls turns | head -1)" = 000
        test "$(ls -U turns | sort)" = "$(ls turns)"
        test "$(stat -c %a .)" = 500
        test "$(stat -c %a turns/000)" = 400
        test "$(stat -c %a undo)" = 600
        test "$(stat -c %U turns/000)" = "$(id -un)"
        test "$(stat -c %Y turns/000)" -le "$(stat -c %Y turns/001)"
        test "$(readlink ../latest)" = "$(basename "$PWD")"
        grep -q '^state: ok$' status
        python3 -c 'import json; m = json.load(open("meta.json")); assert m["agent"] == "kimi-cli" and m["turns"] == 4, m'
        test "$(stat -c %i turns/000)" = "$(stat -c %i turns/0)"
        find . > "$OUT/found"; find . -type f -exec cat {} + > /dev/null
        ! grep -q records "$OUT/found"
        test -f records/000.jsonl; test -f prompts/000; test -f context.md; test -d raw
    "#;
    let ran = in_session("b-tools", script);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
}

#[test]
fn a_name_is_made_of_facts_that_never_change() {
    let store = TestStore::from_sample("a-plain");
    let name = |store: &TestStore| store.run(&["ls", "--all", "--json"]).json()[0]["name"].clone();
    let before = name(&store);
    assert_eq!(before, "2026-11-30-kimi-cli-turn-one-e8ac2706");
    let state = store
        .root
        .join("sessions/301f8022c44669fd30b93f123c419b45/0c45fd13-bf97-4bf8-9665-76d7e8ac2706/state.json");
    let renamed = std::fs::read_to_string(&state).unwrap().replace("turn one", "another title");
    std::fs::write(&state, renamed).unwrap();
    assert_eq!(name(&store), before);
    assert_eq!(store.run(&["ls", "--all", "--json"]).json()[0]["title"], "another title");
}
