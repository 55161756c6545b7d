from troupe import main

main()
