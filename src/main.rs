fn main() -> std::process::ExitCode {
    turnfs::cli::run()
}
