# Sums a LastTest.log of ctest: the closing line of a test where it has one, else the test itself.
/ Testing: / { name = $3; closing = "" }
/^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { closing = $0 }
/^skipped / { print name ": " $0 }
/^Test (Passed|Failed)\.$/ {
    split(closing, n, /[^0-9]+/)
    passed += n[1]
    failed += n[2]
    skipped += n[3]
    if (/Failed/) {
        print "FAILED " name
        if (!n[2]) failed++
    } else if (!closing) passed++
}
END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
